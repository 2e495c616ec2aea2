// The gateway's HTTP API.

/** The gateway has refused or failed a request. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Calls the gateway that this page came from. */
export class Api {
  /** The API key that calls carry; it is never stored. */
  key = "";

  /** What GET /v1/models lists. */
  async models() {
    return (await (await this.#call("v1/models")).json()).data;
  }

  /** The chunks of a stream; raises ApiError. */
  async *stream(path, body, signal) {
    const answer = await this.#call(path, { method: "POST", body: JSON.stringify(body), signal });
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(answer.status, chunk.error.message);
      yield chunk;
    }
    throw new ApiError(answer.status, "the stream broke off");
  }

  async #call(path, options = {}) {
    const headers = { "Content-Type": "application/json" };
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    const answer = await fetch(path, { ...options, headers });
    if (answer.ok) return answer;
    const refusal = await answer.json().catch(() => null);
    throw new ApiError(answer.status, refusal?.error?.message ?? `HTTP ${answer.status}`);
  }
}

/** The data of each server-sent event of a body. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const blocks = (waiting + part.value).split("\n\n");
      waiting = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: "));
        if (data.length) yield data.map((line) => line.slice(6)).join("\n");
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
