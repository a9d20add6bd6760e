// What needs attention, and what can be done about it.

import { h, number, percent } from './dashboard.api.js';
import { addressOf, bansFor } from './dashboard.subject.js';

/** From how much of its requests on a subject that is denied is taken for an abuser. */
const MOSTLY = 0.5;

/**
 * What needs attention, the worst first, with what can be done about it.
 * @param {{configuration: object, second: object, decisions: object[],
 *   denied: object[], near: object[]}}
 *   state what is in force, what was counted in the last second and in each of the last minute, and
 *   the subjects that were denied most and that are near their limits
 */
export function findings(state) {
  const { second } = state;
  const found = [];
  if (second.load.error) {
    found.push({
      kind: 'bad',
      title: 'Configuration refused',
      text: [
        'The one before stays in force. Correct the files; they are loaded again by themselves.',
      ],
      detail: second.load.error,
    });
  }
  if (second.store.unreachable) {
    found.push({
      kind: 'bad',
      title: 'Redis',
      text: [`${second.store.unreachable}; what on_failure says is in force until it is back.`],
    });
  }
  const out = second.upstreams.flatMap(({ name, servers }) =>
    servers.filter(({ available }) => !available).map((server) => ({ name, server: server.name })),
  );
  for (const { name, server } of out) {
    found.push({
      kind: 'bad',
      title: 'Server ejected',
      text: [
        h('span', { class: 'id' }, server),
        ` of upstream ${name} gets no requests until a probe finds it back.`,
      ],
    });
  }
  const named = new Set(state.denied.map(({ limit, key }) => `${limit} ${key}`));
  const denied = state.denied.filter(({ limit }) => !isDryRun(state, limit));
  found.push(...denied.slice(0, 6).map(aboutDenied));
  for (const subject of state.near) {
    if (!named.has(`${subject.limit} ${subject.key}`) && found.length < 8) {
      found.push({
        kind: 'info',
        title: 'Near its limit',
        subject,
        text: [
          h('b', { class: 'id' }, subject.subject),
          ` has used ${percent(subject.used)} of ${subject.limit}. `,
          'If it is a customer who may send more, raise the limit for it by an override.',
        ],
        actions: [['', 'Manage']],
      });
    }
  }
  for (const { name } of state.configuration.limits.filter(({ name: limit }) =>
    isDryRun(state, limit),
  )) {
    const subjects = state.denied.filter(({ limit }) => limit === name);
    const sum = (of) =>
      state.decisions.reduce((total, { limits }) => total + of(limits[name]?.second ?? {}), 0);
    const [wouldDeny, allowed] = [
      sum((now) => now.would_deny ?? 0),
      sum((now) => now.allowed ?? 0),
    ];
    if (wouldDeny > 0 && subjects.length > 0) {
      found.push({
        kind: 'warn',
        title: 'Dry run',
        subject: { limit: name, subject: subjects[0].subject },
        text: [
          h('b', {}, name),
          ` would deny ${percent(wouldDeny / (wouldDeny + allowed))} of its requests, most of `,
          h('b', { class: 'id' }, subjects[0].subject),
          '. If these are honest clients, raise the limit before you enforce it.',
        ],
        actions: [['', 'Manage']],
      });
    }
  }
  return found;
}

function isDryRun(state, name) {
  const uses = state.configuration.limits.find((limit) => limit.name === name)?.uses ?? [];
  return uses.length > 0 && uses.every(({ enforce }) => enforce === 'false');
}

function aboutDenied(subject) {
  const share = subject.denied / subject.requests;
  const facts = [
    h('b', { class: 'id' }, subject.subject),
    ` sends ${number(subject.rate, 1)} requests a second; `,
    h('b', {}, subject.limit),
    ` denies ${percent(share)} of them. `,
  ];
  const explains = addressOf(subject.limit, subject.subject) ? [['explain', 'Explain']] : [];
  if (share >= MOSTLY) {
    const canBan = bansFor(subject.limit).length > 0;
    return {
      kind: 'bad',
      title: 'Abuse',
      subject,
      text: [
        ...facts,
        canBan
          ? 'It goes on although it is denied: ban it for a while.'
          : 'It goes on although it is denied. The limit holds; a ban per the same would end it.',
      ],
      actions: [...(canBan ? [['ban', 'Ban…']] : []), ...explains, ['', 'Manage']],
    };
  }
  return {
    kind: 'warn',
    title: 'Too much at times',
    subject,
    text: [
      ...facts,
      'It is served for the most part: if it may send more, raise the limit for it by an override.',
    ],
    actions: [...explains, ['', 'Manage']],
  };
}
