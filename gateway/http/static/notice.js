// The notice that no drafter answers, from what the gateway lists and from what rounds say.

import { byId } from "./element.js";

const GONE = "drafter_unavailable";

/** Shown while there is a drafter that should answer and none does. */
export class Notice {
  #place = byId("notice");

  /** Take a model as the gateway lists it. */
  listed(model) {
    const drafters = model?.drafters ?? [];
    const lost = drafters.length > 0 && drafters.every((drafter) => drafter.state !== "ready");
    this.#show(lost ? "No drafter answers: generations go on without drafts, and draft again when one is back." : "");
  }

  /** Take a round. */
  round(report) {
    if (report.fallback === GONE) this.#show("The drafter is gone: this generation goes on without drafts.");
    else if (report.drafted.length) this.#show("");
  }

  /** Say that the gateway cannot be asked. */
  unreachable(message) {
    this.#show(`The gateway does not answer: ${message}`);
  }

  #show(text) {
    if (this.#place.textContent !== text) this.#place.textContent = text;
    this.#place.hidden = !text;
  }
}
