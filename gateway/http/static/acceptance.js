// α by position: how often the draft at each position of a round was accepted when it was judged.

import { element } from "./element.js";

/** Counts rounds, and shows the shares as bars. */
export class Acceptance {
  #judged = [];
  #accepted = [];
  #bars;

  constructor() {
    this.#bars = element("div", { className: "by-position" });
    this.element = element("div", { hidden: true }, element("h3", {}, "α by position"), this.#bars);
  }

  /** Count a round. Tokens after its first rejected one have no verdict of their own. */
  add(report) {
    report.drafted.slice(0, report.accepted + 1).forEach((token, position) => {
      this.#judged[position] = (this.#judged[position] ?? 0) + 1;
      this.#accepted[position] = (this.#accepted[position] ?? 0) + Number(token.accepted);
    });
    this.element.hidden = !this.#judged.length;
    this.#bars.replaceChildren(...this.#judged.flatMap((judged, position) => this.#row(position, judged)));
  }

  #row(position, judged) {
    const share = this.#accepted[position] / judged;
    const meter = element("meter", { min: 0, max: 1, value: share, title: `${this.#accepted[position]} of ${judged}` });
    meter.setAttribute("aria-label", `Position ${position + 1}`);
    return [element("span", {}, String(position + 1)), meter, element("span", {}, `${share.toFixed(2)} of ${judged}`)];
  }
}
