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
  number,
  percent,
  rows,
  setToken,
  show,
} from './dashboard.api.js';
import { Chart, meter, shares } from './dashboard.charts.js';
import { findings } from './dashboard.findings.js';
import { addressOf, configure, openBan, openBucket } from './dashboard.subject.js';

/** How often subjects are asked for. */
const SUBJECTS_EVERY = 3000;
/** How many lines of the tail are kept. */
const TAIL_LINES = 200;

const NOT_LIMITED = ['allowed', 'delayed', 'unlimited', 'failed_open', 'unrouted'];

const state = {
  configuration: null,
  second: null,
  subjects: {},
  decisions: [],
  paused: false,
  abort: null,
  denied: [],
  near: [],
};

const decisionsChart = new Chart(
  $('decisions'),
  [
    { key: 'allowed', name: 'Allowed', kind: 'allowed' },
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

function enforced(mode) {
  if (mode === 'true') return h('span', { class: 'chip plain good' }, 'enforced');
  if (mode === 'false') return h('span', { class: 'chip plain warn' }, 'dry run');
  if (mode === 'off') return h('span', { class: 'chip plain' }, 'off');
  return h('span', { class: 'chip plain warn' }, `enforced on ${mode}`);
}

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
  $('ban-lookup').hidden = bans.length === 0;
  if (state.second) showTables(state.second);
}

/** What was decided in a second, in four parts that add up. */
function parts(second) {
  const of = (names) => names.reduce((sum, name) => sum + (second.decisions[name] ?? 0), 0);
  const all = of(Object.keys(second.decisions));
  const banned = Object.values(second.bans).reduce((sum, ban) => sum + ban.second.denied, 0);
  const allowed = of(NOT_LIMITED);
  const wouldDeny = of(['would_deny']);
  const denied = Math.max(all - allowed - wouldDeny - banned, 0);
  return { all, allowed, wouldDeny, denied, banned: Math.min(banned, all - allowed - wouldDeny) };
}

function showSecond(second) {
  state.second = second;
  Object.assign(state.subjects, second.subjects ?? {});
  const decided = parts(second);
  state.decisions.push({
    ...decided,
    failedOpen: second.decisions.failed_open ?? 0,
    limits: second.limits,
  });
  if (state.decisions.length > 60) state.decisions.shift();
  showTail(second);
  if (state.paused) return;
  decisionsChart.add(decided);
  latencyChart.add({ all: second.latency.all.p99, own: second.latency.own.p99 });
  showTiles(second, decided);
  showTables(second);
  showFindings();
}

function showTiles(second, { all, denied, banned }) {
  const { store, load } = second;
  const { is_shared: isShared } = state.configuration;
  const since = Date.now() / 1000 - load.at;
  const tiles = [
    ['Decisions', `${number(all)}/s`, `${percent(all ? (denied + banned) / all : 0)} denied`],
    [
      'Latency, p99',
      duration(second.latency.all.p99),
      `median ${duration(second.latency.all.p50)}`,
    ],
    [
      'Weir alone, p99',
      duration(second.latency.own.p99),
      `median ${duration(second.latency.own.p50)}`,
    ],
    ['In flight', number(second.in_flight), `${number(second.connections)} connections`],
    isShared
      ? [
          'Redis',
          store.unreachable ? 'out of reach' : 'connected',
          store.unreachable ?? `a call takes ${duration(store.latency?.p99)} (p99)`,
          store.unreachable !== null,
          true,
        ]
      : ['Store', 'memory', `${number(store.buckets_in_memory)} buckets`, false, true],
    [
      'Configuration',
      load.error ? 'refused' : 'loaded',
      load.error ? 'the one before stays in force' : `${duration(since * 1000)} ago`,
      load.error !== null,
      true,
    ],
  ];
  fill(
    $('tiles'),
    tiles.map(([name, value, note, isBad, isSmall]) =>
      h(
        'div',
        { class: isBad ? 'tile bad' : 'tile' },
        h('dt', {}, name),
        h('dd', { class: isSmall ? 'small' : null }, value),
        h('dd', { class: 'note' }, note),
      ),
    ),
  );
}

const count = (value) => [value ? 'number' : 'number zero', number(value)];

function showTables(second) {
  const { limits, bans, routes } = state.configuration;
  rows(
    $('limit-rows'),
    limits.filter(({ name }) => second.limits[name]),
    ({ name }) => name,
    (limit) => {
      const { second: now, total } = second.limits[limit.name];
      const modes = new Map(limit.uses.map(({ enforce }) => [enforce, 0]));
      for (const { enforce } of limit.uses) modes.set(enforce, modes.get(enforce) + 1);
      const chips = [...modes.keys()].map((mode) => {
        const chip = enforced(mode);
        chip.title = limit.uses
          .filter(({ enforce }) => enforce === mode)
          .map(({ route }) => route)
          .join(', ');
        return chip;
      });
      return [
        [
          '',
          h(
            'span',
            {},
            limit.name,
            h(
              'span',
              { class: 'sub' },
              `${limit.quota ?? 'overrides alone'}, per ${limit.per.join(' and ')}`,
              limit.overrides ? `; ${limit.overrides} overridden` : '',
            ),
          ),
        ],
        ['', h('span', { class: 'chips' }, chips)],
        count(now.allowed),
        count(now.denied),
        count(now.would_deny),
        [
          '',
          h(
            'span',
            {},
            `${number(total.allowed)} allowed, ${number(total.denied)} denied`,
            total.would_deny ? `, ${number(total.would_deny)} would be` : '',
            shares([
              ['allowed', total.allowed],
              ['would-deny', total.would_deny],
              ['denied', total.denied],
            ]),
          ),
        ],
        count(state.subjects[limit.name] ?? 0),
      ];
    },
  );
  rows(
    $('ban-rows'),
    bans.filter(({ name }) => second.bans[name]),
    ({ name }) => name,
    (ban) => {
      const { second: now, total } = second.bans[ban.name];
      return [
        ['', h('span', {}, ban.name, h('span', { class: 'sub' }, `per ${ban.per.join(' and ')}`))],
        ['', h('span', { class: 'chips' }, enforced(ban.enforce))],
        ['', `${number(ban.strikes)} in ${ban.within}`],
        ['', ban.lengths.join(', then ')],
        count(now.denied + now.would_deny),
        count(total.denied + total.would_deny),
      ];
    },
  );
  const all = [...routes, { name: '-', matches: 'what matches no route', limits: [] }];
  rows(
    $('route-rows'),
    all.filter(({ name }) => second.routes[name]),
    ({ name }) => name,
    (route) => {
      const now = second.routes[route.name];
      const passed = NOT_LIMITED.concat('would_deny').reduce(
        (sum, word) => sum + (now.decisions[word] ?? 0),
        0,
      );
      const target = route.upstream ? ` → ${route.upstream}` : '';
      return [
        ['', h('span', {}, route.name, h('span', { class: 'sub' }, `${route.matches}${target}`))],
        ['', route.limits.join(', ') || 'none'],
        count(now.requests),
        count(now.requests - passed),
        count(now.server_errors),
        ['number', duration(now.latency.p99)],
      ];
    },
  );
  const servers = second.upstreams.flatMap(({ name, servers: of, retries }) =>
    of.map((server) => ({ ...server, upstream: name, retries })),
  );
  rows(
    $('upstream-rows'),
    servers,
    (server) => `${server.upstream} ${server.name}`,
    (server) => [
      ['', h('span', {}, server.upstream, h('span', { class: 'sub' }, server.name))],
      [
        '',
        h(
          'span',
          { class: 'chips' },
          h(
            'span',
            { class: server.available ? 'chip good' : 'chip bad' },
            server.available ? 'available' : 'ejected',
          ),
        ),
      ],
      count(server.in_flight),
      count(server.ejections),
    ],
  );
}

// Subjects.

async function askSubjects() {
  if (state.paused || !state.configuration) return;
  const sort = document.querySelector('input[name=sort]:checked').value;
  const [limit, period] = [$('subjects-limit').value, $('subjects-period').value];
  const query = new URLSearchParams({ sort, period, count: 15, ...(limit && { limit }) });
  const minute = (by) => ask('GET', `v1/top?sort=${by}&period=minute&count=10`);
  const [listed, denied, near] = await Promise.all([
    ask('GET', `v1/top?${query}`),
    minute('denied'),
    minute('remaining'),
  ]);
  state.denied = denied.subjects;
  state.near = near.subjects;
  showSubjects(listed.subjects);
  showFindings();
}

function showSubjects(subjects) {
  $('no-subjects').hidden = subjects.length > 0;
  rows(
    $('subject-rows'),
    subjects,
    ({ limit, key }) => `${limit} ${key}`,
    (subject) => {
      const share = subject.denied / subject.requests;
      const kind = subject.used >= 1 ? 'denied' : subject.used >= 0.8 ? 'would-deny' : 'allowed';
      return [
        ['id', subject.subject],
        ['', subject.limit],
        ['number', number(subject.requests)],
        ['number', number(subject.rate, 1)],
        ['', meter(subject.used, percent(subject.used), kind)],
        [
          '',
          subject.denied
            ? meter(share, percent(share), 'denied')
            : h('span', { class: 'muted' }, 'none'),
        ],
        ['number act', manage(subject)],
      ];
    },
  );
}

function manage({ limit, subject }, action, label = 'Manage') {
  return h(
    'button',
    {
      type: 'button',
      'data-limit': limit,
      'data-subject': subject,
      'data-action': action,
      'aria-label': action ? null : `Manage ${subject} of ${limit}`,
    },
    label,
  );
}

// Rows come and go; the listener stays.
for (const place of [$('subject-rows'), $('findings')]) {
  place.addEventListener('click', (event) => {
    const { limit, subject, action } = event.target.closest('button')?.dataset ?? {};
    if (action === 'explain') showExplain(addressOf(limit, subject), limit);
    else if (limit) openBucket(limit, subject, action);
  });
}

// What needs attention.

function showFindings() {
  if (!state.second || !state.configuration) return;
  const found = findings(state);
  if (found.length === 0) {
    found.push({
      kind: 'good',
      title: 'All is well',
      text: ['Nobody was denied within the last minute, or was near a limit.'],
    });
  }
  keyed($('findings'), found, keyOf, (item, { kind, title, text, detail, subject, actions }) => {
    if (!item) {
      const buttons = actions?.map(([action, label]) =>
        manage(subject, action || undefined, label),
      );
      item = h(
        'li',
        { class: `finding ${kind}` },
        h('span', { class: 'kind' }, title),
        h('p'),
        detail && h('pre', {}, detail),
        buttons && h('span', { class: 'buttons' }, buttons),
      );
    }
    show(item.querySelector('p'), text);
    return item;
  });
}

/** What makes two findings the same, though their figures differ. */
function keyOf({ kind, title, detail, subject, actions }) {
  const of = subject && [subject.limit, subject.subject];
  return JSON.stringify([kind, title, detail, of, actions]);
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

const handlers = {
  configuration: showConfiguration,
  second: showSecond,
  end: ({ why }) => connection('warn', why),
};

/** Follows events for as long as the page is open, over restarts of the gateway. */
async function run() {
  let wait = 500;
  for (;;) {
    state.abort = new AbortController();
    try {
      await follow(tailQuery(), state.abort.signal, (name, data) => {
        if (name === 'configuration') connected();
        handlers[name]?.(data);
        wait = 500;
      });
    } catch (error) {
      if (error instanceof ApiError && [401, 403].includes(error.status)) return refused(error);
      if (error.name === 'AbortError') continue;
      connection('bad', error instanceof ApiError ? error.message : 'no connection');
    }
    await new Promise((resume) => {
      setTimeout(resume, wait);
    });
    wait = Math.min(wait * 2, 10000);
  }
}

function connected() {
  connection('good', state.paused ? 'paused' : 'live');
  $('login').hidden = true;
  $('refusal').hidden = true;
  $('panels').hidden = false;
  $('sign-out').hidden = !hasToken();
}

function refused({ status, message }) {
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

async function pollSubjects() {
  try {
    await askSubjects();
  } catch {
    // The stream of events tells of it.
  }
  setTimeout(pollSubjects, SUBJECTS_EVERY);
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
  connection('good', state.paused ? 'paused' : 'live');
});
on('explain-form', 'submit', explainRequest);
on('lookup', 'submit', () => openBucket($('lookup-limit').value, $('lookup-subject').value.trim()));
on('ban-lookup', 'submit', () =>
  openBan($('ban-lookup-ban').value, $('ban-lookup-subject').value.trim()),
);
on('tail-form', 'submit', restartTail);
for (const id of ['tail-on', 'tail-decision', 'tail-by', 'tail-route', 'tail-text'])
  on(id, 'change', restartTail);
for (const input of document.querySelectorAll(
  'input[name=sort], #subjects-limit, #subjects-period',
)) {
  input.addEventListener('change', () => {
    askSubjects().catch(() => {});
  });
}

run();
pollSubjects();
