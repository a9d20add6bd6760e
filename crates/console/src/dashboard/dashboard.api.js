// The admin API, and elements. All texts are set as text: what a client chose never becomes markup.

const TOKEN = 'weir.token';

/**
 * How many milliseconds an answer may take. On a connection that is gone, such as that of a machine
 * that has slept, none would come, and nothing would be asked any more.
 */
const ANSWERS_WITHIN = 30000;

/** Why the API did not do what it was asked. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}

/** Keeps the token for this tab, or forgets it. */
export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

async function send(method, path, body, signal = AbortSignal.timeout(ANSWERS_WITHIN)) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN);
  // What cannot stand in a header is not the token.
  if (token !== null) headers.authorization = `Bearer ${/^[!-~]*$/.test(token) ? token : ''}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const response = await fetch(path, {
    method,
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
    referrerPolicy: 'no-referrer',
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiError(response.status, problem.detail ?? `The gateway answers ${response.status}.`);
}

/** Asks the API, and returns what it answers. */
export async function ask(method, path, body) {
  return (await send(method, path, body)).json();
}

/** A path of which all but the first part is the caller's word. */
export function path(prefix, ...names) {
  return [prefix, ...names.map(encodeURIComponent)].join('/');
}

/**
 * Reads a stream of server-sent events until it ends. EventSource cannot send the token.
 * @param {(name: string, data: object) => void} handle
 */
export async function follow(query, signal, handle) {
  const response = await send('GET', `v1/events?${query}`, undefined, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split('\n\n');
    text = events.pop();
    for (const event of events) {
      const lines = event.split('\n');
      const field = (name) =>
        lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      handle(field('event'), JSON.parse(field('data')));
    }
  }
}

export const $ = (id) => document.getElementById(id);

const SVG = 'http://www.w3.org/2000/svg';
const SVG_NAMES = new Set(['svg', 'path', 'rect', 'line', 'polyline', 'title']);

/**
 * An element with these attributes and children. A string among the children is text; `on...` is a
 * listener.
 */
export function h(name, attributes, ...children) {
  const element = SVG_NAMES.has(name)
    ? document.createElementNS(SVG, name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== undefined && value !== null && value !== false)
      element.setAttribute(key, value);
  }
  fill(element, ...children);
  return element;
}

/** Replaces what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren(
    ...children
      .flat()
      .filter((child) => child !== null && child !== undefined)
      .map((child) => (child instanceof Node ? child : String(child))),
  );
}

/** Shows contents in an element, unless it shows them already. */
export function show(element, contents) {
  const parts = contents.map((part) => (part instanceof Node ? part.outerHTML : part));
  const shown = JSON.stringify(parts);
  if (element.shown === shown) return;
  element.shown = shown;
  fill(element, ...contents);
}

/**
 * Shows items as the children of an element. A child whose key is still there stays the same
 * element, so that the focus and the pointer stay where they are.
 * @param {(child: Element|undefined, item: object) => Element} make makes a child, or changes it
 */
export function keyed(parent, items, key, make) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const focused = document.activeElement;
  items.forEach((item, place) => {
    const child = make(before.get(key(item)), item);
    before.delete(key(item));
    child.dataset.key = key(item);
    if (parent.children[place] !== child) {
      parent.insertBefore(child, parent.children[place] ?? null);
    }
  });
  for (const child of before.values()) child.remove();
  // What is moved loses the focus.
  if (parent.contains(focused)) focused.focus({ preventScroll: true });
}

/**
 * Shows items as rows of a table.
 * @param {(item: object) => [string, ...(Node|string)][]} cells each with a class and its contents
 */
export function rows(body, items, key, cells) {
  const labels = [...body.closest('table').querySelectorAll('th')].map((th) => th.textContent);
  keyed(body, items, key, (before, item) => {
    const row = before ?? h('tr');
    cells(item).forEach(([kind, ...contents], column) => {
      const label = { 'data-label': labels[column] };
      const cell = row.children[column] ?? row.appendChild(h('td', label));
      if (cell.className !== kind) cell.className = kind;
      show(cell, contents);
    });
    return row;
  });
}

/** A name that may be broken before its capitals, so that it fits a narrow column. */
export function soft(name) {
  const parts = name.split(/(?<=[a-z0-9])(?=[A-Z])/);
  return parts.flatMap((part, place) => (place > 0 ? [h('wbr'), part] : [part]));
}

/** A text whose parts between backticks are code. */
export function marked(text) {
  const parts = text.split('`');
  // A backtick without another is itself.
  if (parts.length % 2 === 0) return [text];
  return parts.map((part, place) => (place % 2 === 1 ? h('code', {}, part) : part)).filter(Boolean);
}

/** Fills a list of choices with names, behind the choice of all. */
export function choices(select, names) {
  const chosen = select.value;
  const all = [...select.options].filter((option) => option.value === '' || option.dataset.fixed);
  fill(select, ...all, ...names.map((name) => h('option', { value: name }, name)));
  select.value = [...select.options].some((option) => option.value === chosen)
    ? chosen
    : (select.options[0]?.value ?? '');
}

export function number(value, digits = 0) {
  if (value === null || value === undefined) return '–';
  const most = value !== 0 && Math.abs(value) < 10 ? Math.max(digits, 1) : digits;
  return value.toLocaleString('en', { maximumFractionDigits: Number.isInteger(value) ? 0 : most });
}

export function percent(share) {
  if (!Number.isFinite(share)) return '–';
  const percents = share * 100;
  return `${percents > 0 && percents < 10 ? percents.toFixed(1) : Math.round(percents)}%`;
}

/** A duration of so many milliseconds. */
export function duration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}
