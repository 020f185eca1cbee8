// Questions to the endpoint that has served this page. Paths are relative, so that it may be behind
// a prefix.

const TOKEN = "flinkray.token";
const PATIENCE = 15_000;

// `status`: 0 if nothing has answered.
export class ApiError extends Error {
  constructor(status, texts) {
    super(texts[0] ?? `status ${status}`);
    this.status = status;
    this.texts = texts;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  const known = token.get();
  if (known) headers.Authorization = `Bearer ${known}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const signals = [AbortSignal.timeout(PATIENCE), ...(signal ? [signal] : [])];
  let response, text;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.any(signals),
      credentials: "omit",
      redirect: "error",
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, [`The REST endpoint at ${location.origin} does not answer.`]);
  }
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    throw new ApiError(response.status, ["What answers here is not flinkray's REST endpoint."]);
  }
  if (!response.ok) throw new ApiError(response.status, (told?.errors ?? []).map(String));
  return told;
}

// The answers to some questions, a few at a time: a browser has few connections to a host, and a
// user's click should not wait for all of them. What is not there (any more) is null.
export async function askEach(paths, signal, atATime = 4) {
  const answers = new Array(paths.length).fill(null);
  let next = 0;
  async function work() {
    while (next < paths.length) {
      const i = next++;
      answers[i] = await optional(ask(paths[i], { signal }));
    }
  }
  await Promise.all(Array.from({ length: Math.min(atATime, paths.length) }, work));
  return answers;
}

export async function optional(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}
