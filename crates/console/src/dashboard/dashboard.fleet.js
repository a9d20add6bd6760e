// The gateways that share the store, and the choice between all of them and this one.

import { $, duration, fill, h, number, rows } from './dashboard.api.js';

/** Whose figures are asked for: those of all gateways, once there were several. */
export function scope() {
  const chosen = document.querySelector('input[name=scope]:checked').value;
  return $('scope').hidden ? 'gateway' : chosen;
}

const FIGURES = {
  forbidden: 'its Redis user may not share figures',
  another_version: 'its figures have the form of another version',
  missing: 'no figures',
};

/**
 * Shows the gateways, if there are several, or others that this one does not see.
 * @param {{is_fleet: boolean, alone: string|null, gateways: object[]}}
 *   fleet
 * @return {boolean} whether the scope has changed by that
 */
export function showGateways({ is_fleet: isFleet, alone, gateways }) {
  const hasOthers = gateways.length > 1 || (isFleet && alone !== null);
  const isNew = $('scope').hidden && hasOthers;
  for (const id of ['scope', 'gateways', 'gateways-link']) {
    $(id).hidden &&= !hasOthers;
  }
  const own = gateways[0].configuration;
  rows(
    $('gateway-rows'),
    gateways,
    ({ id }) => id,
    (gateway) => [
      [
        '',
        h(
          'span',
          {},
          gateway.name,
          h('span', { class: 'sub' }, gateway.address, gateway.is_self ? ', this one' : ''),
        ),
      ],
      [
        '',
        h(
          'span',
          { class: 'chips' },
          state(gateway),
          h('span', { class: 'sub' }, FIGURES[gateway.figures]),
        ),
      ],
      ['', configuration(gateway, own)],
      ['', gateway.version],
      ['', new Date(gateway.since).toLocaleString('en', { hour12: false })],
      ...['requests', 'denied', 'failed', 'in_flight'].map((name) => [
        'number',
        number(gateway.counts?.[name]),
      ]),
    ],
  );
  fill($('gateways-note'), alone ? `This gateway shows itself alone: ${alone}.` : '');
  $('gateways-note').hidden = !alone;
  return isNew;
}

function state({ state: word, seen }) {
  const kind = { up: 'good', behind: 'warn' }[word] ?? 'bad';
  const text = word === 'up' ? word : `${word} for ${duration(seen * 1000)}`;
  return h('span', { class: `chip ${kind}` }, text);
}

/** The digest of a gateway's configuration. Findings tell how it differs from that of this one. */
function configuration({ configuration: digest }, own) {
  if (digest === own) return digest;
  return h('span', {}, digest, ' ', h('span', { class: 'chip plain warn' }, 'differs'));
}

/** Says which gateways are counted, and how many requests of a subject may be missing. */
export function showCounted({ scope: of, gateways, known, alone, subjects }) {
  const missing = Math.max(0, ...subjects.map(({ uncounted }) => uncounted));
  const all = gateways < known ? `${number(gateways)} of ${number(known)}` : number(gateways);
  const counted = alone ? `This gateway alone: ${alone}.` : `Of ${all} gateways.`;
  fill(
    $('subjects-note'),
    counted,
    missing ? ` Up to ${number(missing)} requests of a subject may be missing.` : '',
  );
  $('subjects-note').hidden = of !== 'fleet' || subjects.length === 0;
}
