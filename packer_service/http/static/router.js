// Every view is a path and parameters after the `#`, so that its address can be shared and Back works.

/** The address after the `#`: decoded path segments and a `URLSearchParams`. */
export function current() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const segments = path.split("/").filter(Boolean).map(decoded);
  return { segments, params: new URLSearchParams(query) };
}

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment; // an address typed by hand: the service will say that nothing is there
  }
}

/** The address of a view; parameters that are null or empty are left out. */
export function href(segments, params = {}) {
  const query = new URLSearchParams(
    Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""),
  );
  const path = `#/${segments.map(encodeURIComponent).join("/")}`;
  return query.size ? `${path}?${query}` : path;
}

/** The address of the current view with some parameters changed. */
export function withParams(changes) {
  const { segments, params } = current();
  return href(segments, { ...Object.fromEntries(params), ...changes });
}

export function go(address) {
  location.hash = address;
}
