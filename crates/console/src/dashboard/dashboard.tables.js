// The tiles, and the tables of limits, bans, routes and upstreams.

import { $, duration, fill, h, number, percent, rows, soft } from './dashboard.api.js';
import { shares } from './dashboard.charts.js';

/** The decisions that no limit, ban or list is behind. */
export const NOT_LIMITED = ['allowed', 'delayed', 'unlimited', 'failed_open', 'unrouted'];

function enforced(mode) {
  if (mode === 'true') return h('span', { class: 'chip plain good' }, 'enforced');
  if (mode === 'false') return h('span', { class: 'chip plain warn' }, 'dry run');
  if (mode === 'off') return h('span', { class: 'chip plain' }, 'off');
  return h('span', { class: 'chip plain warn' }, `enforced on ${mode}`);
}

/** What can be told in a word of the last second. */
export function showTiles(configuration, second, { all, failed, denied, banned }) {
  const { store, load } = second;
  const { is_shared: isShared } = configuration;
  const since = Date.now() / 1000 - load.at;
  const tiles = [
    [
      'Decisions',
      `${number(all)}/s`,
      `${percent(all ? (denied + banned) / all : 0)} denied` +
        (failed ? `, ${percent(failed / all)} failed` : ''),
      failed * 100 >= all && failed > 0,
    ],
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
    [
      'In flight',
      number(second.in_flight),
      `${number(second.connections)} connections` +
        (second.refused ? `, ${number(second.refused)}/s refused` : ''),
    ],
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

function listed(name, place) {
  return place > 0 ? [', ', ...soft(name)] : soft(name);
}

const count = (value) => [value ? 'number' : 'number zero', number(value)];

/** The tables of what is configured, with what was counted in the last second. */
export function showTables(configuration, second, subjectsOf) {
  const { limits, bans, routes } = configuration;
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
        count(subjectsOf[limit.name] ?? 0),
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
        ['', ban.strikes === null ? 'by hand' : `${number(ban.strikes)} in ${ban.within}`],
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
        ['name', ...(route.limits.length ? route.limits.flatMap(listed) : ['none'])],
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
            { class: server.available && !server.trouble ? 'chip good' : 'chip bad' },
            (!server.available && 'out of use') || (server.trouble ? 'failing' : 'available'),
          ),
          server.trouble && h('span', { class: 'sub' }, server.trouble),
        ),
      ],
      count(server.in_flight),
      count(server.ejections),
    ],
  );
}
