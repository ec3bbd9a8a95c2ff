// What the run says, as it says it: server-sent events over fetch, because EventSource cannot send a token.
//
// Always holds: the token is in this tab alone (sessionStorage) and in no address; a connection that ends is begun again.

const KEY = "streamjoin.token", AGAIN_MS = 1500, SILENT_MS = 12000;

/** Takes a token that came with the link (#token=...), and removes it from the address. */
export function adoptToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + location.search);
  }
}

export const token = () => sessionStorage.getItem(KEY);

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** A request to the API: its status and its JSON. `body`: JSON as a text, or what becomes it. Throws where there is no answer. */
export async function ask(path, { method = "GET", body } = {}) {
  const given = body && headers({ Accept: "application/json", "Content-Type": "application/json" });
  const text = typeof body === "string" ? body : body && JSON.stringify(body);
  const answer = await fetch(path, { method, headers: given || headers({ Accept: "application/json" }), body: text, cache: "no-store" });
  const found = await answer.text();
  try {
    return { status: answer.status, value: JSON.parse(found) };
  } catch {
    return { status: answer.status, value: { error: found.slice(0, 300) } };
  }
}

function headers(more) {
  return token() ? { ...more, Authorization: `Bearer ${token()}` } : more;
}

/** Follows a path for ever. `told.event(kind, value)`, `told.lost(why)`, `told.refused(status, error)`. Returns what begins anew at once. */
export function follow(path, told) {
  let stopper = new AbortController(), wake = () => {};

  async function once() {
    const controller = stopper = new AbortController();
    let silent = setTimeout(() => controller.abort(), SILENT_MS);
    try {
      const answer = await fetch(path, { headers: headers({ Accept: "text/event-stream" }), signal: controller.signal, cache: "no-store" });
      if (!answer.ok) {
        const found = await answer.json().catch(() => ({}));
        told.refused(answer.status, found.error ?? answer.statusText);
        return;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        clearTimeout(silent);
        silent = setTimeout(() => controller.abort(), SILENT_MS);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
          if (fields.data) told.event(fields.event, JSON.parse(fields.data));
        }
      }
      told.lost("the run has closed the connection");
    } catch (error) {
      told.lost(error.name === "AbortError" ? "nothing was heard for a while" : "the run cannot be reached");
    } finally {
      clearTimeout(silent);
    }
  }

  (async () => {
    for (;;) {
      await once();
      await new Promise((resolve) => { wake = resolve; setTimeout(resolve, AGAIN_MS); });
    }
  })();
  return () => { stopper.abort(); wake(); };
}
