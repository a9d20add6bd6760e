// The dashboard: follows the gateway's events, and shows them.

import {
  $,
  ApiError,
  ask,
  choices,
  duration,
  fill,
  follow,
  h,
  keyed,
  hasToken,
  marked,
  number,
  percent,
  rows,
  setToken,
  show,
  soft,
} from './dashboard.api.js';
import { Chart, meter, usedKind } from './dashboard.charts.js';
import { findings } from './dashboard.findings.js';
import { scope, showCounted, showGateways } from './dashboard.fleet.js';
import {
  addressOf,
  bansFor,
  configure,
  length,
  openBan,
  openBucket,
  openOverride,
} from './dashboard.subject.js';
import { NOT_LIMITED, showTables, showTiles } from './dashboard.tables.js';

/** How often subjects are asked for. */
const SUBJECTS_EVERY = 3000;
/** How often the gateways of the fleet are asked for. */
const GATEWAYS_EVERY = 3000;
/** How often bans are asked for, of which a store has many. */
const BANS_EVERY = 5000;
/** How many bans are shown. */
const BANS = 50;
/** How often the overrides of operators are asked for, and how many are shown. */
const OVERRIDES_EVERY = 5000;
const OVERRIDES = 50;
/** After how many seconds without an event what is shown is old, and the gateway is lost. */
const STALE_AFTER = 4;
const LOST_AFTER = 12;
/** How many lines of the tail are kept. */
const TAIL_LINES = 200;

const state = {
  configuration: null,
  second: null,
  subjects: {},
  /** The points of the last hour. */
  history: [],
  bans: [],
  paused: false,
  abort: null,
  /** What the gateway says of itself and of subjects; null before it was asked. */
  gateway: null,
  findings: [],
  /** When the last event came, and the last attempt to get events began. */
  heard: null,
  tried: 0,
  /** Why there is no connection. */
  problem: null,
};

const decisionsChart = new Chart(
  $('decisions'),
  [
    { key: 'allowed', name: 'Allowed', kind: 'allowed' },
    { key: 'failed', name: 'Failed (5xx)', kind: 'failed' },
    { key: 'wouldDeny', name: 'Would deny', kind: 'would-deny' },
    { key: 'denied', name: 'Denied', kind: 'denied' },
    { key: 'banned', name: 'Banned', kind: 'banned' },
  ],
  { stacked: true, show: (value) => number(value) },
);

const latencyChart = new Chart(
  $('latency'),
  [
    { key: 'all', name: 'With the upstream, p99', kind: 'with' },
    { key: 'own', name: 'Weir alone, p99', kind: 'own' },
  ],
  { stacked: false, show: duration },
);

function showConfiguration(configuration) {
  state.configuration = configuration;
  configure(configuration, showExplain);
  fill($('version'), configuration.version);
  const limits = configuration.limits.map((limit) => limit.name);
  const bans = configuration.bans.map((ban) => ban.name);
  choices($('subjects-limit'), limits);
  choices($('lookup-limit'), limits);
  choices($('ban-lookup-ban'), bans);
  choices($('tail-by'), [...limits, ...bans]);
  choices(
    $('tail-route'),
    configuration.routes.map((route) => route.name),
  );
  $('no-limits').hidden = limits.length > 0;
  $('lookup').hidden = limits.length === 0;
  $('no-bans').hidden = bans.length > 0;
  $('configured-bans').hidden = bans.length === 0;
  $('ban-lookup').hidden = bans.length === 0;
  if (state.second) showTables(configuration, state.second, state.subjects);
}

/** What became of the requests of a second, or of a point, in five parts that add up. */
function parts(second) {
  const sum = (counts, names) => names.reduce((total, name) => total + (counts[name] ?? 0), 0);
  const all = sum(second.decisions, Object.keys(second.decisions));
  const through = [...NOT_LIMITED, 'would_deny'];
  const failed = sum(second.failed, through);
  const allowed = sum(second.decisions, NOT_LIMITED) - sum(second.failed, NOT_LIMITED);
  const wouldDeny = sum(second.decisions, through) - allowed - failed;
  const limited = all - allowed - failed - wouldDeny;
  const banned = Math.min(second.banned, limited);
  return { all, allowed, failed, wouldDeny, denied: limited - banned, banned };
}

function showSecond(second) {
  state.second = second;
  Object.assign(state.subjects, second.subjects ?? {});
  const decided = parts(second);
  showTail(second);
  if (state.paused) return;
  decisionsChart.add(decided);
  latencyChart.add({ all: second.latency.all.p99, own: second.latency.own.p99 });
  showTiles(state.configuration, second, decided);
  showTables(state.configuration, second, state.subjects);
  showFindings();
}

/** How many points of the history are kept. */
const POINTS = 360;

/** Adds what the gateway has counted before the page was opened, and then from time to time. */
function showHistory({ seconds, points }) {
  const before = state.history.filter(({ at }) => at < points[0].at);
  state.history = [...before, ...points].slice(-POINTS);
  const spread = withGaps(state.history, seconds);
  const rates = spread.map((point) => point && rate(parts(point), seconds));
  decisionsChart.setHour(rates.map((point) => point ?? {}), seconds);
  const latency = spread.map((point) => ({ all: point?.latency.all.p99 }));
  latencyChart.setHour(latency, seconds);
}

/** What was counted in so many seconds, for each of them. */
function rate(counts, seconds) {
  return Object.fromEntries(Object.entries(counts).map(([name, count]) => [name, count / seconds]));
}

/** The points at their times: null where the gateway was gone. */
function withGaps(points, seconds) {
  const placed = points.flatMap((point, place) => {
    const since = place === 0 ? seconds : point.at - points[place - 1].at;
    const missing = Math.min(Math.max(Math.round(since / seconds) - 1, 0), POINTS);
    return [...Array(missing).fill(null), point];
  });
  return placed.slice(-POINTS);
}

// Subjects.

async function askSubjects() {
  if (state.paused || !state.configuration) return;
  const sort = document.querySelector('input[name=sort]:checked').value;
  const [limit, period] = [$('subjects-limit').value, $('subjects-period').value];
  const of = scope();
  const query = new URLSearchParams({
    sort,
    period,
    count: 15,
    scope: of,
    ...(limit && { limit }),
  });
  const [listed, found] = await Promise.all([
    ask('GET', `v1/top?${query}`),
    ask('GET', `v1/findings?scope=${of}`),
  ]);
  // Another scope was chosen meanwhile.
  if (of !== scope()) return;
  state.gateway = found.gateway;
  state.findings = found.findings;
  showSubjects(listed.subjects);
  showCounted(listed);
  showFindings();
}

async function askGateways() {
  if (state.paused || !state.configuration?.is_shared) return;
  if (showGateways(await ask('GET', 'v1/gateways'))) await askSubjects();
}

/** The bans of all gateways that share the store. */
async function askBans() {
  if (state.paused || !state.configuration || state.configuration.bans.length === 0) return;
  const { bans, next, warning } = await ask('GET', `v1/bans?count=${BANS}`);
  state.bans = bans;
  $('banned').hidden = bans.length === 0;
  rows(
    $('banned-rows'),
    bans,
    ({ ban, subject }) => `${ban} ${subject}`,
    ({ ban, subject, ends_in: endsIn, why }) => [
      ['id', subject],
      ['', ban],
      ['', length(endsIn)],
      ['', reason(why)],
      [
        'number act',
        h(
          'button',
          {
            type: 'button',
            'data-ban': ban,
            'data-subject': subject,
            'data-action': 'lift',
            'aria-label': `Lift the ban of ${subject} by ${ban}`,
          },
          'Lift…',
        ),
      ],
    ],
  );
  const more = `The first ${BANS} are shown; GET /v1/bans lists the others.`;
  const beware = warning && `${warning.charAt(0).toUpperCase()}${warning.slice(1)}.`;
  const told = [beware, next && more].filter(Boolean).join(' ');
  fill($('no-banned'), told || 'Nobody is banned.');
  $('no-banned').hidden = bans.length > 0 && !told;
}

/** The overrides that operators have set, with who did, and until when they hold. */
async function askOverrides() {
  if (state.paused || !state.configuration || state.configuration.limits.length === 0) return;
  const { overrides, total } = await ask('GET', `v1/overrides?origin=api&count=${OVERRIDES}`);
  $('overrides').hidden = overrides.length === 0;
  rows(
    $('override-rows'),
    overrides,
    ({ limit, id }) => `${limit} ${id}`,
    (override) => [
      ['id', override.id],
      ['name', ...soft(override.limit)],
      ['', parameters(override), override.in_force ? '' : h('span', { class: 'sub' }, override.reason)],
      [
        '',
        h(
          'span',
          {},
          override.set_by,
          h('span', { class: 'sub' }, moment(override.set_at), override.comment && `: ${override.comment}`),
        ),
      ],
      ['', override.until ? moment(override.until) : 'for good'],
      [
        'number act',
        h(
          'button',
          {
            type: 'button',
            'data-limit': override.limit,
            'data-subject': override.id,
            'data-action': 'undo',
            'aria-label': `Undo the override of ${override.id} for ${override.limit}`,
          },
          'Undo…',
        ),
      ],
    ],
  );
  const more = `The first ${OVERRIDES} of ${number(total)} are shown; GET /v1/overrides lists the others.`;
  fill($('more-overrides'), more);
  $('more-overrides').hidden = total <= overrides.length;
}

function parameters({ burst, count, period, in_flight: inFlight }) {
  const told = [
    burst !== undefined && `${number(burst)} at once`,
    count !== undefined && `${number(count)}${period ? ` each ${period}` : ''}`,
    inFlight !== undefined && `${number(inFlight)} in flight`,
  ];
  return told.filter(Boolean).join(', ');
}

function moment(text) {
  return new Date(text).toLocaleString('en', { hour12: false });
}

/** Why a ban began. */
function reason(why) {
  if (why.by === 'operator') {
    return `set by ${why.name}${why.comment ? `: ${why.comment}` : ''}`;
  }
  const offence = why.offence > 1 ? `, offence ${number(why.offence)}` : '';
  return `${number(why.strikes)} strikes by ${why.by} ${why[why.by] ?? ''}${offence}`;
}

/** Whether a subject of a limit is banned, as far as this page knows. */
function isBanned({ limit, subject }) {
  const isOf = (found) => found.limit === limit && found.subject === subject;
  const names = bansFor(limit).map(({ name }) => name);
  return (
    state.findings.some((found) => found.kind === 'banned' && isOf(found)) ||
    state.bans.some((known) => known.subject === subject && names.includes(known.ban))
  );
}

function showSubjects(subjects) {
  $('no-subjects').hidden = subjects.length > 0;
  rows(
    $('subject-rows'),
    subjects,
    ({ limit, key }) => `${limit} ${key}`,
    (subject) => {
      const share = subject.denied / subject.requests;
      const kind = usedKind(subject.used, subject.denied > 0);
      return [
        ['id', named(subject), isBanned(subject) ? h('span', { class: 'chip banned-chip' }, 'banned') : ''],
        ['name', ...soft(subject.limit)],
        ['number', number(subject.requests)],
        ['number', number(subject.rate, 1)],
        ['', meter(subject.used, percent(subject.used), kind)],
        [
          '',
          subject.denied
            ? meter(share, percent(share), 'denied')
            : h('span', { class: 'muted' }, 'none'),
        ],
        ['number act', button({ ...subject, label: 'Manage' })],
      ];
    },
  );
}

/** A subject with the name of its account, where that is known. */
function named({ name, subject }) {
  return name ? h('span', {}, name, h('span', { class: 'sub' }, subject)) : subject;
}

function button({ label, style, limit, ban, subject, name, action }) {
  return h(
    'button',
    {
      type: 'button',
      class: style || null,
      'data-limit': limit,
      'data-ban': ban,
      'data-subject': subject,
      'data-name': name,
      'data-action': action,
      'aria-label': action ? null : `Manage ${name ?? subject} of ${limit}`,
    },
    label,
  );
}

// Rows come and go; the listener stays.
for (const place of [$('subject-rows'), $('findings'), $('banned-rows'), $('override-rows')]) {
  place.addEventListener('click', (event) => {
    const { limit, ban, subject, name, action } = event.target.closest('button')?.dataset ?? {};
    if (action === 'explain') showExplain(addressOf(limit, subject), limit);
    else if (action === 'undo') openOverride(limit, subject, () => askOverrides().catch(() => {}));
    else if (ban) openBan(ban, subject, action);
    else if (limit) {
      const of = (found) => found.limit === limit && found.subject === subject;
      const suggested = state.findings.find(of)?.remedy.parameters ?? undefined;
      openBucket(limit, subject, { action, name, suggested });
    }
  });
}

// What needs attention.

function showFindings() {
  if (!state.gateway) return;
  const found = findings(state);
  if (silence() >= STALE_AFTER) {
    found.unshift({
      kind: 'bad',
      title: 'No answer',
      text: [`The gateway has sent nothing for ${silence()} s. All that is shown is from before.`],
    });
  }
  if (found.length === 0) {
    found.push({
      kind: 'good',
      title: 'All is well',
      text: [
        'Within the last minute nobody was denied, or was near a limit, and no server failed.',
      ],
    });
  }
  const bad = found.filter(({ kind }) => kind === 'bad').length;
  document.title = bad ? `(${bad}) Weir` : 'Weir';
  keyed($('findings'), found, keyOf, (item, finding) => {
    const { kind, title, text, detail, remedy, command, buttons } = finding;
    if (!item) {
      item = h(
        'li',
        { class: `finding ${kind}` },
        h('span', { class: 'kind' }, title),
        h(
          'div',
          { class: 'told' },
          h('p', { class: 'text' }),
          detail && h('pre', {}, detail),
          remedy && h('p', { class: 'remedy' }),
        ),
        buttons && h('span', { class: 'buttons' }, buttons.map(button)),
      );
    }
    show(item.querySelector('.text'), text);
    if (remedy) {
      show(item.querySelector('.remedy'), [
        h('b', {}, 'Remedy: '),
        ...marked(`${remedy}.`),
        command && h('code', { class: 'command' }, command),
      ]);
    }
    return item;
  });
}

/** What makes two findings the same, though their figures differ. */
function keyOf({ kind, title, detail, subject, buttons }) {
  return JSON.stringify([kind, title, detail, subject, buttons]);
}

// Explain.

/** Shows the form to explain a request from an address, by a route that uses the limit. */
function showExplain(address, limit) {
  if (address) $('explain-ip').value = address;
  const route = state.configuration.routes.find(({ limits }) => limits.includes(limit));
  const path = route?.matches.match(/\/[^\s,*{]*/)?.[0];
  if (path) $('explain-path').value = path;
  $('explain').scrollIntoView();
  $('explain-path').focus();
  explainRequest();
}

async function explainRequest() {
  const headers = $('explain-headers')
    .value.split('\n')
    .filter((line) => line.trim());
  const body = {
    method: $('explain-method').value.trim(),
    path: $('explain-path').value.trim(),
    ip: $('explain-ip').value.trim(),
    headers,
  };
  const place = $('explanation');
  place.hidden = false;
  try {
    const { explanation } = await ask('POST', 'v1/explain', body);
    place.className = '';
    fill(place, explanation);
  } catch (error) {
    place.className = 'error';
    fill(place, error.message);
  }
}

// The tail.

let tail = [];

function showTail({ tail: lines, left_out: leftOut }) {
  if (!$('tail-on').checked) return;
  if (state.paused) return;
  tail = [...lines.map((line, place) => ({ ...line, place })).reverse(), ...tail].slice(
    0,
    TAIL_LINES,
  );
  const more = leftOut
    ? `; ${number(leftOut)} more in this second, of which these are a sample`
    : '';
  fill($('tail-note'), `The last ${tail.length} requests that match${more}.`);
  const time = (at) => new Date(at).toLocaleTimeString('en', { hour12: false });
  rows(
    $('tail-rows'),
    tail,
    ({ at, place, path }) => `${at} ${place} ${path}`,
    (line) => {
      const by = line.ban ?? line.limit ?? line.list;
      const kind = NOT_LIMITED.includes(line.decision)
        ? ''
        : line.decision === 'would_deny'
          ? 'warn'
          : 'bad';
      return [
        ['', time(line.at)],
        [
          'id',
          h(
            'span',
            {},
            line.client ?? '–',
            line.account && h('span', { class: 'sub' }, line.account),
          ),
        ],
        ['id', h('span', { title: line.user_agent }, `${line.method} ${line.path}`)],
        ['number', String(line.status)],
        [
          '',
          h(
            'span',
            { class: `chip plain ${kind}` },
            by ? `${line.decision} by ${by}` : line.decision,
          ),
        ],
        ['', line.route],
        ['number', duration(line.ms)],
      ];
    },
  );
}

function tailQuery() {
  if (!$('tail-on').checked) return '';
  const query = new URLSearchParams({ tail: 'true' });
  for (const name of ['decision', 'by', 'route', 'text']) {
    const value = $(`tail-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  return query.toString();
}

// The connection.

function connection(kind, text) {
  $('connection').className = `chip ${kind}`;
  fill($('connection'), text);
}

/** For how many seconds no event has come. */
function silence() {
  return Math.floor((Date.now() - state.heard) / 1000);
}

/**
 * Says whether events come: a gateway that hangs sends none, and closes no connection. Such a
 * connection is given up for another from time to time.
 */
function showConnection() {
  if (state.heard === null) return;
  const [silent, tried] = [silence(), (Date.now() - state.tried) / 1000];
  if (state.problem) connection('bad', state.problem);
  else if (silent >= LOST_AFTER) connection('bad', `lost: silent for ${silent} s`);
  else if (silent >= STALE_AFTER) connection('warn', `stale: silent for ${silent} s`);
  else connection('good', state.paused ? 'paused' : 'live');
  $('panels').classList.toggle('stale', silent >= STALE_AFTER);
  if (silent >= STALE_AFTER) showFindings();
  if (silent >= LOST_AFTER && tried >= LOST_AFTER) state.abort?.abort();
}

function heard(problem) {
  state.heard = Date.now();
  state.problem = problem ?? null;
  showConnection();
}

const handlers = {
  configuration: showConfiguration,
  second: showSecond,
  history: showHistory,
  end: () => {},
};

/** Follows events for as long as the page is open, over restarts of the gateway. */
async function run() {
  let wait = 500;
  for (;;) {
    state.abort = new AbortController();
    state.tried = Date.now();
    try {
      await follow(tailQuery(), state.abort.signal, (name, data) => {
        heard(data.why);
        if (name === 'configuration') connected();
        handlers[name]?.(data);
        wait = 500;
      });
    } catch (error) {
      if (error instanceof ApiError && [401, 403].includes(error.status)) return refused(error);
      if (error.name === 'AbortError') continue;
      state.problem = error instanceof ApiError ? error.message : 'no connection';
      connection('bad', state.problem);
    }
    await new Promise((resume) => {
      setTimeout(resume, wait);
    });
    wait = Math.min(wait * 2, 10000);
  }
}

function connected() {
  $('login').hidden = true;
  $('refusal').hidden = true;
  $('panels').hidden = false;
  $('sign-out').hidden = !hasToken();
}

function refused({ status, message }) {
  state.heard = null;
  $('panels').hidden = true;
  if (status === 403) {
    connection('bad', 'refused');
    fill($('refusal'), message);
    $('refusal').hidden = false;
    return;
  }
  connection('warn', 'signed out');
  fill($('login-error'), hasToken() ? 'This is not the token.' : '');
  setToken(null);
  $('login').hidden = false;
  $('token').value = '';
  $('token').focus();
}

function restartTail() {
  tail = [];
  fill($('tail-rows'));
  fill(
    $('tail-note'),
    $('tail-on').checked
      ? 'Waiting for requests that match.'
      : 'Nobody watches requests until you follow them.',
  );
  state.abort?.abort();
}

/** Asks again and again. If the gateway does not answer, the stream of events tells of it. */
async function poll(asks, every) {
  await asks().catch(() => {});
  setTimeout(() => poll(asks, every), every);
}

function on(id, event, handle) {
  $(id).addEventListener(event, (happened) => {
    if (event === 'submit') happened.preventDefault();
    handle(happened);
  });
}

on('login', 'submit', () => {
  setToken($('token').value.trim());
  run();
});
on('sign-out', 'click', () => {
  setToken(null);
  location.reload();
});
on('pause', 'click', () => {
  state.paused = !state.paused;
  $('pause').setAttribute('aria-pressed', state.paused);
  showConnection();
});
// On a phone, tables begin with a few rows.
for (const more of document.querySelectorAll('.show-all')) {
  more.addEventListener('click', () => more.previousElementSibling.classList.add('all'));
}
for (const input of document.querySelectorAll('input[name=span]')) {
  input.addEventListener('change', () => {
    for (const chart of [decisionsChart, latencyChart]) chart.choose(input.value);
  });
}
on('explain-form', 'submit', explainRequest);
on('lookup', 'submit', () => openBucket($('lookup-limit').value, $('lookup-subject').value.trim()));
on('ban-lookup', 'submit', () =>
  openBan($('ban-lookup-ban').value, $('ban-lookup-subject').value.trim()),
);
on('tail-form', 'submit', restartTail);
for (const id of ['tail-on', 'tail-decision', 'tail-by', 'tail-route', 'tail-text'])
  on(id, 'change', restartTail);
for (const input of document.querySelectorAll(
  'input[name=sort], input[name=scope], #subjects-limit, #subjects-period',
)) {
  input.addEventListener('change', () => {
    askSubjects().catch(() => {});
  });
}

run();
setInterval(showConnection, 1000);
poll(askGateways, GATEWAYS_EVERY);
poll(askSubjects, SUBJECTS_EVERY);
poll(askBans, BANS_EVERY);
poll(askOverrides, OVERRIDES_EVERY);
