// The REST client: answers or problems, with the token if the service asks for one.

const TOKEN = "preshard-token";
const remembered = new Map();
let leaving = new AbortController();

/** A problem that the service described (RFC 9457), or that kept it from answering. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    Object.assign(this, { status, title, detail });
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
};

/** The path of a resource: segments are encoded; parameters that are null or empty are left out. */
export function address(segments, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") query.append(name, value);
  }
  const path = `/v1/${segments.map(encodeURIComponent).join("/")}`;
  return query.size ? `${path}?${query}` : path;
}

async function send(url, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let response;
  try {
    response = await fetch(url, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The service does not answer", "The service does not answer. Is it still running?");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.title || `Status ${response.status}`, problem.detail);
}

/** A JSON answer. Within one view the same request is sent only once. */
export function get(segments, params) {
  const url = address(segments, params);
  if (!remembered.has(url)) {
    const answer = send(url).then((response) => response.json());
    answer.catch(() => remembered.delete(url));
    remembered.set(url, answer);
  }
  return remembered.get(url);
}

/** Forgets all answers, so that the next view asks again: datasets change while people look at them. */
export function forget() {
  remembered.clear();
}

/** Gives up what was posted: the reader has left the view that asked, and the service need not work on. */
export function abandon() {
  leaving.abort();
  leaving = new AbortController();
}

export async function post(segments, body) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", body: JSON.stringify(body), headers, signal: leaving.signal };
  return (await send(address(segments), options)).json();
}

/** The bytes of an image as an address for an <img>: where the service wants a token, an <img> cannot send it. */
export async function imageBytes(segments) {
  return URL.createObjectURL(await (await send(address(segments))).blob());
}
