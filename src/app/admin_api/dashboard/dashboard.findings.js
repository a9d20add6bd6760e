// What needs attention, and what can be done about it.

import { h } from './dashboard.api.js';
import { addressOf } from './dashboard.subject.js';

/**
 * What needs attention, the worst first, with what can be done about it.
 * @param {{second: object, findings: object[]}} state what was counted in the last second, and what
 *   the gateway says of subjects
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
  found.push(...state.findings.map((finding) => aboutSubject(finding)));
  return found;
}

const KINDS = {
  abuse: ['bad', 'Abuse'],
  over_limit: ['warn', 'Over its limit'],
  dry_run: ['warn', 'Dry run'],
  near_limit: ['info', 'Near its limit'],
  banned: ['done', 'Banned'],
};

const ACTIONS = {
  ban: ['Ban…', 'danger'],
  lift: ['Lift the ban…', ''],
  override: ['Raise its limit…', 'primary'],
};

/** What the gateway says of a subject, with the buttons of its remedy. */
function aboutSubject(finding) {
  const { limit, subject, name, subjects, text, remedy } = finding;
  const [kind, title] = KINDS[finding.kind] ?? ['warn', finding.kind];
  const isNetwork = subjects > 1;
  const canExplain = !isNetwork && addressOf(limit, subject);
  const [label, style] = ACTIONS[remedy.action] ?? [];
  const ban = remedy.ban ?? undefined;
  const buttons = [
    label && { label, style, ban, limit, subject, name, action: remedy.action },
    canExplain && { label: 'Explain', limit, subject, action: 'explain' },
    !isNetwork && { label: 'Manage', limit, subject, name },
  ].filter(Boolean);
  return {
    kind,
    title,
    subject: { limit, subject },
    text: [h('b', { class: 'id' }, name ?? subject), ' ', ...emphasized(`${text}.`, limit)],
    remedy: remedy.text,
    command: remedy.command,
    buttons,
  };
}

/** A text with the first mention of a word in bold. */
function emphasized(text, word) {
  const place = text.indexOf(word);
  if (place < 0) return [text];
  return [text.slice(0, place), h('b', {}, word), text.slice(place + word.length)];
}
