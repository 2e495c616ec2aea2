// Whether speculation pays for this request: what pairs of runs, with drafts and without, say together.

import { byId } from "./element.js";

const HARDLY = 1.05; // tokens per round up to which drafts explain no difference in speed

const REASONS = {
  not_worth_it: "the server expects no gain from drafts here",
  first_round: "the drafter was still reading the prompt",
  no_match: "nothing that drafts had a continuation",
  late: "drafts came too late",
  overloaded: "the drafter had no room",
  drafter_unavailable: "no drafter answers",
  tokenizer_mismatch: "the drafter has another tokenizer",
};

/** Show what pairs of runs say; nothing while there are none. */
export function verdict(pairs) {
  const place = byId("verdict");
  const said = judge(pairs);
  place.textContent = said.text;
  place.classList.toggle("slower", said.difference === "slower");
}

/** The difference that pairs of runs agree on, "faster", "slower" or "none", and a sentence about it. */
export function judge(pairs) {
  const ratios = pairs.filter((pair) => pair.plain.rate > 0).map((pair) => pair.drafted.rate / pair.plain.rate);
  if (!ratios.length) return { difference: "none", text: "" };
  if (ratios.length < 2) return { difference: "none", text: `${ratios[0].toFixed(2)} times the speed without drafts in one run; running more …` };
  const least = Math.min(...ratios);
  const most = Math.max(...ratios);
  const range = `${least.toFixed(2)} to ${most.toFixed(2)} in ${ratios.length} runs`;
  const used = pairs.some((pair) => pair.drafted.drafts > 0);
  const gains = used && median(pairs.map((pair) => pair.drafted.tokens / pair.drafted.rounds)) > HARDLY;
  const first = `first token after ${firstOf(pairs, "drafted")} ms with drafts, ${firstOf(pairs, "plain")} ms without`;
  const tokens = pairs.every(same) ? "identical tokens" : "other tokens, as sampled ones may be";
  const beside = `${tokens}; ${first}`;
  if (least > 1 && gains) {
    return { difference: "faster", text: `${median(ratios).toFixed(2)} times the speed without drafts (${range}), ${beside}.` };
  }
  if (most < 1 && used) {
    return { difference: "slower", text: `Slower here: ${median(ratios).toFixed(2)} times the speed without drafts (${range}), ${beside}.` };
  }
  return { difference: "none", text: `No difference: ${[range, ...(gains ? [] : [why(pairs, used)]), beside].join("; ")}.` };
}

function why(pairs, used) {
  const counts = new Map();
  for (const [reason, count] of pairs.flatMap((pair) => [...pair.drafted.fallbacks])) {
    counts.set(reason, (counts.get(reason) ?? 0) + count);
  }
  const [reason] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [];
  const what = used ? "hardly any draft was accepted" : "no drafts were used";
  return reason ? `${what}, because ${REASONS[reason] ?? reason}` : what;
}

function same({ drafted, plain }) {
  return drafted.text === plain.text;
}

function firstOf(pairs, side) {
  return median(pairs.map((pair) => pair[side].first)).toFixed(0);
}

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
