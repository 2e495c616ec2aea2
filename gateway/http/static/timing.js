// What a run of a request took, and what its rounds had, without showing it.

/** Counts of one run; rounds are added as they come. */
export class Timing {
  text = "";
  tokens = 0;
  rounds = 0;
  drafts = 0;
  fallbacks = new Map();
  #began = performance.now();
  #first = null;
  #firstTokens = 0;
  #last = 0;

  /** Add a round's report. */
  add(report) {
    this.#last = performance.now();
    if (this.#first === null) [this.#first, this.#firstTokens] = [this.#last, report.tokens.length];
    this.tokens += report.tokens.length;
    this.rounds += 1;
    this.drafts += report.drafted.length;
    this.text += report.tokens.map((token) => token.text).join("");
    if (report.fallback) this.fallbacks.set(report.fallback, (this.fallbacks.get(report.fallback) ?? 0) + 1);
  }

  /** Milliseconds to the first token; 0 before it. */
  get first() {
    return this.#first === null ? 0 : this.#first - this.#began;
  }

  /** Tokens a second after the first ones; 0 before there are any. */
  get rate() {
    const seconds = (this.#last - this.#first) / 1000;
    return this.#first === null || seconds <= 0 ? 0 : (this.tokens - this.#firstTokens) / seconds;
  }
}
