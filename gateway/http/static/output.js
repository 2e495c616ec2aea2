// One output: its tokens marked by origin, its rounds, and its speed.

import { Acceptance } from "./acceptance.js";
import { element, visible } from "./element.js";
import { Strip } from "./strip.js";
import { Timing } from "./timing.js";

/** A pane that fills as rounds come. */
export class Output {
  timing = new Timing();
  #tokens = element("pre", { className: "tokens", tabIndex: 0 });
  #facts = element("p", { className: "facts" });
  #acceptance = new Acceptance();
  #strip = new Strip((index) => this.#mark(index));
  #rounds = 0;

  constructor(title) {
    this.#tokens.setAttribute("aria-label", `Output ${title}`);
    this.element = element("section", { className: "output" }, element("h2", {}, title), this.#tokens, this.#facts);
    this.element.append(element("h3", {}, "Rounds"), this.#strip.element);
    this.element.append(this.#acceptance.element);
  }

  /** Add a round's report. */
  add(report) {
    this.timing.add(report);
    this.#tokens.append(...pieces(report).map((piece) => this.#piece(piece)));
    this.#tokens.scrollTop = this.#tokens.scrollHeight;
    this.#rounds += 1;
    this.#strip.add(report);
    this.#acceptance.add(report);
    this.#facts.textContent = this.#summary();
  }

  /** Say why the output ended too early. */
  fail(message) {
    this.element.append(element("p", { className: "failed" }, message));
  }

  /** The text so far. */
  get text() {
    return this.timing.text;
  }

  #piece({ kind, text }) {
    const name = kind === "rejected" ? "del" : "span";
    const title = `${kind}: ${meaning(kind)}`;
    const made = element(name, { className: kind, title }, kind === "rejected" ? visible(text) : text);
    made.dataset.round = this.#rounds;
    return made;
  }

  #mark(index) {
    for (const each of this.#tokens.children) each.classList.toggle("of-selected", each.dataset.round === String(index));
  }

  #summary() {
    const parts = [
      `${this.timing.tokens} tokens in ${this.#rounds} rounds`,
      `${this.timing.rate.toFixed(0)} tokens/s after the first`,
      `first after ${this.timing.first.toFixed(0)} ms`,
    ];
    for (const [reason, count] of this.timing.fallbacks) parts.push(`${count} without a draft: ${reason}`);
    return parts.join(" · ");
  }
}

/** What the legend says of a kind of token. */
function meaning(kind) {
  return document.querySelector(`.legend .${kind}`)?.title ?? "";
}

/** The tokens of a round in reading order: drafts that were not kept stand before the token that corrects them. */
function pieces(report) {
  const kept = report.tokens.map((token) => ({ kind: token.origin, text: token.text }));
  const rejected = report.drafted.filter((token) => !token.accepted).map((token) => ({ kind: "rejected", text: token.text }));
  const correction = kept.findIndex((piece) => piece.kind === "recovered");
  kept.splice(correction < 0 ? kept.length : correction, 0, ...rejected);
  return kept;
}
