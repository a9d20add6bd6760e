// What needs attention, and what can be done about it.

import { h, marked } from './dashboard.api.js';
import { addressOf } from './dashboard.subject.js';

/**
 * What needs attention, the worst first, with what can be done about it.
 * @param {{gateway: object[], findings: object[]}} state what the gateway says of itself and of
 *   subjects
 */
export function findings({ gateway, findings: ofSubjects }) {
  return [...gateway.map(aboutGateway), ...ofSubjects.map((finding) => aboutSubject(finding))];
}

const ABOUT_GATEWAY = {
  configuration: ['bad', 'Configuration refused'],
  store: ['bad', 'Store'],
  upstream: ['bad', 'Upstream'],
  overload: ['bad', 'Overload'],
  errors: ['bad', 'Server errors'],
  proxy: ['warn', 'Proxy'],
  unreadable: ['warn', 'Denials that pages cannot read'],
  certificate: ['warn', 'Certificate'],
  refused: ['info', 'Connections refused'],
  fleet: ['warn', 'Fleet'],
};

/** What the gateway says of itself; the place tells several of a kind apart. */
function aboutGateway({ kind: of, gateway, text, detail, remedy }, place) {
  const [kind, title] = ABOUT_GATEWAY[of] ?? ['warn', of];
  const sentence = gateway
    ? `${gateway}: ${text}.`
    : `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
  return { kind, title, subject: place, text: marked(sentence), detail, remedy };
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
  // Who is banned with its network is named by that.
  const isNetwork = subjects > 1 || finding.banned?.network === true;
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
  if (place < 0) return marked(text);
  const [before, after] = [text.slice(0, place), text.slice(place + word.length)];
  return [...marked(before), h('b', {}, word), ...marked(after)];
}
