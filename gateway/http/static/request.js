// The request that the form asks for.

import { byId } from "./element.js";

/** The path and the body of a request, read from the form. */
export class Request {
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

  /** The same request in plain decoding. */
  get plainBody() {
    return { ...this.body, speculation: { mode: "off", detail: true } };
  }
}

function numberOf(name) {
  const value = byId(name).valueAsNumber;
  return Number.isNaN(value) ? {} : { [name]: value };
}
