// The strip of rounds: a button for each, which shows its card.

import { card } from "./card.js";
import { element } from "./element.js";

/** The rounds of one output; arrow keys go from one to the next. */
export class Strip {
  #list = element("ol", { className: "strip" });
  #place = element("div", { className: "place" });
  #onSelect;

  /** onSelect is called with the index of the round whose card is shown, or with -1. */
  constructor(onSelect) {
    this.#onSelect = onSelect;
    this.#list.setAttribute("aria-label", "Rounds");
    this.#list.addEventListener("keydown", (event) => this.#move(event));
    this.element = element("div", {}, this.#list, this.#place);
  }

  /** Add a round after the others. */
  add(report) {
    const index = this.#list.children.length;
    const drafted = report.drafted.length;
    const kind = drafted === 0 ? "" : report.accepted === drafted ? "all" : report.accepted ? "some" : "none";
    const button = element("button", { type: "button", className: kind, tabIndex: index ? -1 : 0 });
    button.textContent = drafted ? `${report.accepted}/${drafted}` : "·";
    button.setAttribute("aria-label", `Round ${index + 1}: ${drafted ? `${report.accepted} of ${drafted} accepted` : "no draft"}`);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => this.#toggle(button, report, index));
    this.#list.append(element("li", {}, button));
  }

  #toggle(button, report, index) {
    const shows = button.getAttribute("aria-pressed") === "true";
    for (const each of this.#list.querySelectorAll("[aria-pressed=true]")) each.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(!shows));
    this.#place.replaceChildren(...(shows ? [] : [card(report, index + 1)]));
    this.#onSelect(shows ? -1 : index);
  }

  #move(event) {
    const buttons = [...this.#list.querySelectorAll("button")];
    const now = buttons.indexOf(document.activeElement);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (next === undefined || !buttons[next]) return;
    event.preventDefault();
    buttons[now].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  }
}
