// Requests to the server that this page comes from. Addresses are relative, so that a proxy may put it under a prefix.

import { SseReader } from "./sse.js";

export class ApiError extends Error {
  /** `status` 0: no answer came. `param` is the request's field that is at fault. */
  constructor(message, { status = 0, param = null, code = null } = {}) {
    super(message);
    Object.assign(this, { status, param, code });
  }
}

export class Api {
  /** The API key; empty if the server needs none. */
  key = "";

  async get(path, signal) {
    return (await this.#fetch(path, { signal })).json();
  }

  /** Call `onChunk` with each chunk of the answer to `body`. Raises ApiError; an abort raises the browser's error. */
  async stream(path, body, signal, onChunk) {
    const request = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal };
    const response = await this.#fetch(path, request);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const events = new SseReader();
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw signal.aborted ? error : new ApiError("The connection was lost before the answer was complete.");
      });
      if (done) throw new ApiError("The connection ended before the answer was complete.");
      for (const data of events.push(value)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new ApiError(chunk.error.message, { status: 500, ...chunk.error });
        onChunk(chunk);
      }
    }
  }

  async #fetch(path, { headers = {}, ...options } = {}) {
    const url = new URL(path, document.baseURI);
    const withKey = this.key ? { ...headers, authorization: `Bearer ${this.key}` } : headers;
    const response = await fetch(url, { ...options, headers: withKey, cache: "no-store" }).catch((error) => {
      throw options.signal?.aborted ? error : new ApiError("The server does not answer.");
    });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    const message = error?.message ?? `HTTP ${response.status}`;
    throw new ApiError(message, { status: response.status, param: error?.param, code: error?.code });
  }
}
