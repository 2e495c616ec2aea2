// The page: its form, its two outputs and what is watched meanwhile.

import { Api } from "./api.js";
import { Conversation } from "./conversation.js";
import { curl } from "./curl.js";
import { byId, element } from "./element.js";
import { Notice } from "./notice.js";
import { Output } from "./output.js";
import { Request } from "./request.js";
import { Timing } from "./timing.js";
import { verdict } from "./verdict.js";

const LOOK_EVERY = 2000; // milliseconds between two looks at the models and their drafters
const PAIRS = 3; // runs with drafts and without that a comparison rests on; the first is shown
const WARM_UP_TOKENS = 16;

const api = new Api();
const conversation = new Conversation();
const notice = new Notice();
let running = null; // aborts the generation under way
let next = 0; // the timer of the next look

/** Stream one output into its pane; false when it failed. */
async function stream(output, path, body, signal) {
  try {
    for await (const chunk of api.stream(path, body, signal)) {
      for (const report of chunk.choices.flatMap((choice) => choice.rounds ?? [])) {
        output.add(report);
        notice.round(report);
      }
    }
    return true;
  } catch (error) {
    output.fail(signal.aborted ? "stopped" : error.message);
    if (error.status === 401) askForKey();
    return false;
  }
}

/** Run a request without showing it; null when it failed or was stopped. */
async function timed(path, body, signal) {
  const timing = new Timing();
  try {
    for await (const chunk of api.stream(path, body, signal)) {
      for (const report of chunk.choices.flatMap((choice) => choice.rounds ?? [])) timing.add(report);
    }
    return timing;
  } catch {
    return null;
  }
}

/** Run both ways a few times more, in turn, and say what all runs show. */
async function compareFurther(pairs, request, signal) {
  while (pairs.length < PAIRS && !signal.aborted) {
    verdict(pairs);
    const drafted = await timed(request.path, request.draftedBody, signal);
    const plain = drafted && (await timed(request.path, request.plainBody, signal));
    if (!plain) break;
    pairs.push({ drafted, plain });
  }
  verdict(pairs);
}

/** Generate with speculation, then, where the form asks for it, without: one after the other, so that both are alone. */
async function generate() {
  if (running) return;
  const request = new Request(conversation.messages);
  running = new AbortController();
  byId("run").disabled = true;
  byId("stop").disabled = false;
  verdict([]);
  showCurl(request);
  const compares = byId("compare").checked;
  const { signal } = running;
  if (compares) {
    for (const body of [request.draftedBody, request.plainBody]) {
      await timed(request.path, { ...body, max_tokens: WARM_UP_TOKENS }, signal);
    }
  }
  const speculative = new Output("with speculation");
  byId("outputs").replaceChildren(speculative.element);
  const whole = await stream(speculative, request.path, compares ? request.draftedBody : request.body, signal);
  if (whole && compares) {
    const plain = new Output("without speculation");
    byId("outputs").append(plain.element);
    if (await stream(plain, request.path, request.plainBody, signal)) {
      await compareFurther([{ drafted: speculative.timing, plain: plain.timing }], request, signal);
    }
  }
  if (whole && request.chat) {
    conversation.add(request.text, speculative.text);
    byId("text").value = "";
  }
  running = null;
  byId("run").disabled = false;
  byId("stop").disabled = true;
}

function stop() {
  running?.abort();
}

function showCurl(request = new Request(conversation.messages)) {
  byId("curl").textContent = curl(request, Boolean(api.key));
}

function askForKey() {
  byId("key-form").hidden = false;
  byId("key").focus();
}

/** Look which models there are, and whether drafters answer. */
async function look() {
  clearTimeout(next);
  try {
    const models = await api.models();
    listModels(models);
    const chosen = models.find((model) => model.id === byId("model").value) ?? models[0];
    byId("model-facts").textContent = `${chosen.id} · context ${chosen.max_model_len} · drafters ${chosen.drafters.length}`;
    if (!running) notice.listed(chosen);
  } catch (error) {
    if (error.status === 401) return askForKey();
    notice.unreachable(error.message);
  }
  next = setTimeout(look, LOOK_EVERY);
}

function listModels(models) {
  const select = byId("model");
  const names = models.map((model) => model.id);
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => element("option", {}, name)));
  showCurl();
}

function changeKind() {
  const chat = document.querySelector("[name=kind]:checked").value === "chat";
  byId("conversation").hidden = byId("new-chat").hidden = !chat;
  showCurl();
}

/** Copy the command; where the browser forbids that, it is selected for the user to copy. */
async function copy() {
  getSelection().selectAllChildren(byId("curl"));
  const written = navigator.clipboard?.writeText(byId("curl").textContent) ?? Promise.reject();
  byId("copied").textContent = await written.then(() => "copied", () => "selected");
}

byId("request").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
byId("request").addEventListener("input", () => showCurl());
byId("stop").addEventListener("click", stop);
byId("copy").addEventListener("click", copy);
byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  showCurl();
});
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.key = byId("key").value.trim();
  byId("key").value = "";
  byId("key-form").hidden = true;
  look();
});
for (const radio of document.querySelectorAll("[name=kind]")) radio.addEventListener("change", changeKind);
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("request").requestSubmit();
  if (event.key === "Escape") stop();
});
changeKind();
look();
