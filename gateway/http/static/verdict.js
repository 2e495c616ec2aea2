// Whether speculation pays for this request, by the speed of both outputs.

import { byId } from "./element.js";

/** Say how the speeds of an output with drafts and of one without compare; without numbers, say nothing. */
export function verdict(speculative, plain) {
  const place = byId("verdict");
  const ratio = speculative && plain ? speculative / plain : 0;
  place.classList.toggle("slower", ratio > 0 && ratio < 1);
  if (!ratio) place.textContent = "";
  else if (ratio < 1) place.textContent = `Slower here: ${ratio.toFixed(2)} times the speed without speculation.`;
  else place.textContent = `${ratio.toFixed(2)} times the speed without speculation.`;
}
