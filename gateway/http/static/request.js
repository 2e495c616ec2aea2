// The request that the form asks for.

import { byId } from "./element.js";

/** The path and the body of a request, read from the form. */
export class Request {
  #seed = Math.floor(Math.random() * 2 ** 31);
  #salt = `page-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;

  constructor(messages) {
    const text = byId("text").value;
    this.chat = document.querySelector("[name=kind]:checked").value === "chat";
    this.path = this.chat ? "v1/chat/completions" : "v1/completions";
    this.text = text;
    this.body = {
      ...(byId("model").value && { model: byId("model").value }),
      ...(this.chat ? { messages: [...messages, { role: "user", content: text }] } : { prompt: text }),
      max_tokens: byId("max-tokens").valueAsNumber,
      temperature: byId("temperature").valueAsNumber,
      ...numberOf("seed"),
      stream: true,
      speculation: {
        ...(byId("mode").value && { mode: byId("mode").value }),
        ...numberOf("gamma"),
        detail: true,
      },
    };
  }

  /** The request as one side of a comparison: its seed is chosen, and no prefix cache is shared with the other side. */
  get draftedBody() {
    return { seed: this.#seed, ...this.body, cache_salt: `${this.#salt}-on` };
  }

  /** The other side, in plain decoding. */
  get plainBody() {
    const coupled = this.body.speculation.mode === "coupled";
    const speculation = coupled ? { mode: "coupled", gamma: 0, detail: true } : { mode: "off", detail: true };
    return { seed: this.#seed, ...this.body, cache_salt: `${this.#salt}-off`, speculation };
  }
}

function numberOf(name) {
  const value = byId(name).valueAsNumber;
  return Number.isNaN(value) ? {} : { [name]: value };
}
