// The card of a round: what was drafted, on what its verdict rests, and where its time went.

import { element, visible } from "./element.js";

const REASONS = {
  fixed: "fixed by the request or by the verifier's settings",
  optimal: "best for this request alone, as it asks",
  egag: "chosen by the drafter, by the entropy of its distributions (EGAG)",
  goodput: "expected to give the most tokens per second",
  trial: "a trial, which compares drafting with plain decoding",
  room: "the output has no room for more",
  source: "chosen by the source itself",
};

/** The card of a round's report. */
export function card(report, number) {
  const made = element("section", { className: "card" });
  made.setAttribute("aria-label", `Round ${number}`);
  made.append(element("h3", {}, `Round ${number}, at position ${report.base_len}`));
  for (const line of facts(report)) made.append(element("p", {}, line));
  if (report.drafted.length) made.append(table(report.drafted));
  return made;
}

function facts(report) {
  const reason = REASONS[report.gamma_reason] ?? (report.gamma_reason || "not kept");
  const source = report.drafter
    ? `Drafted by: ${report.drafter}; ${report.accepted} of ${report.drafted.length} accepted`
    : `No draft${report.fallback ? `: ${report.fallback}` : ""}`;
  const expected = report.predicted_speedup ? `, speed-up expected ×${report.predicted_speedup.toFixed(2)}` : "";
  return [
    source,
    `γ = ${report.gamma}: ${reason} (α ${report.alpha.toFixed(2)}${expected})`,
    ["draft", "network", "queue", "pass"].map((name) => `${name} ${milliseconds(report[`${name}_seconds`])}`).join(" · "),
  ];
}

function milliseconds(seconds) {
  return `${(1000 * seconds).toFixed(1)} ms`;
}

function table(drafted) {
  const columns = [
    ["p", (token) => token.p],
    ["q", (token) => token.q],
    ["min(1, p/q)", ratio],
    // In token rejection without lenience the threshold is the ratio.
    ...(drafted.some((token) => token.threshold !== ratio(token)) ? [["threshold", (token) => token.threshold]] : []),
    ["u", (token) => token.u],
    // Where the drafter chooses γ by entropy.
    ...(drafted.some((token) => (token.h_norm ?? null) !== null)
      ? [["H_norm", (token) => token.h_norm], ["γ", (token) => token.gamma, String]]
      : []),
  ];
  const names = ["token", ...columns.map(([name]) => name), "verdict", "source"];
  const head = element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)));
  const rows = drafted.map((token) => {
    const kind = token.accepted ? "accepted" : "rejected";
    const numbers = columns.map(([, value, written]) => element("td", {}, number(value(token), written)));
    const cells = [...numbers, element("td", {}, kind), element("td", {}, token.source)];
    return element("tr", {}, element("td", { className: kind }, visible(token.text)), ...cells);
  });
  const made = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  return element("div", { className: "scroll", tabIndex: 0 }, made);
}

function ratio(token) {
  return token.q === null || token.p === null ? null : Math.min(1, token.p / token.q);
}

function number(value, written = (each) => each.toFixed(4)) {
  return (value ?? null) === null ? "–" : written(value);
}
