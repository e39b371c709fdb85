'use strict';
// The picture: what page.js hands on, drawn by cytoscape. Places are computed here, so that a node stays where it is.

const Draw = (() => {
  const cell = 64, gap = 70, siteLabel = 30; // of the picture, in its own units
  const wide = { native: 5, vxlan: 5, direct: 3, punched: 3, relayed: 3, none: 4 };
  const many = 60; // nodes, from which on sites are folded until they are opened
  const near = 1.1; // the zoom from which on paths are labelled: below, nobody could read it
  const restMs = 200; // how long after the hand has moved the picture it is brought up to date
  const rank = ['broken', 'warning', 'unknown', 'affected', 'unasked', 'well']; // a folded site shows the first that any of its nodes has
  const order = ['none', 'relayed', 'punched', 'direct', 'vxlan', 'native']; // of paths, likewise
  let cy, chosen = () => {}, hidden = new Set(), found = null, old = false;
  const opened = new Set(); // sites, while there are many nodes

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
  const look = () => {
    const text = colour('text'), back = colour('back');
    return [
      { selector: 'node', style: { width: 26, height: 26, label: 'data(name)', color: text, 'font-size': 11, 'font-family': 'system-ui, sans-serif', 'text-wrap': 'ellipsis', 'text-max-width': cell + 24,
        'text-valign': 'bottom', 'text-margin-y': 3, 'min-zoomed-font-size': 7, 'background-color': colour('good'), 'border-width': 1.5, 'border-color': text } },
      { selector: 'node[class="relay"]', style: { shape: 'round-hexagon', width: 36, height: 32, 'text-max-width': 3 * cell, 'text-valign': 'top', 'text-margin-y': -3 } },
      { selector: 'node[state="broken"]', style: { 'background-color': colour('bad'), width: 34, height: 34 } },
      { selector: 'node[state="warning"]', style: { 'background-color': colour('warn') } },
      { selector: 'node[class="node"][state="broken"]', style: { shape: 'diamond' } },
      { selector: 'node[class="node"][state="warning"]', style: { shape: 'pentagon' } },
      { selector: 'node[?self]', style: { 'border-width': 4, 'border-color': colour('accent'), 'font-weight': 'bold' } },
      { selector: 'node[state="affected"]', style: { 'border-style': 'double', 'border-width': 6, 'border-color': colour('warn') } },
      { selector: 'node[state="unknown"], node.stale', style: { 'background-color': colour('unknown'), 'border-style': 'dashed', 'border-width': 3, 'border-color': text } },
      { selector: 'node[class="node"][state="unknown"]', style: { shape: 'rectangle' } },
      { selector: 'node[state="unasked"]', style: { 'background-color': back, 'border-color': colour('faint') } },
      { selector: 'node[class="site"]', style: { shape: 'round-rectangle', 'background-color': colour('panel'), 'background-opacity': 1, 'border-color': colour('line'), 'border-style': 'solid',
        'border-width': 1, 'text-valign': 'top', 'text-margin-y': -4, 'font-size': 16, color: colour('faint'), 'min-zoomed-font-size': 6, width: 'data(wide)', height: 'data(wide)', 'text-max-width': 'data(wide)',
        'z-compound-depth': 'bottom' } },
      { selector: 'node[class="folded"]', style: { shape: 'round-rectangle', width: 64, height: 30, 'text-max-width': 2 * cell, 'font-size': 13 } },
      { selector: 'edge', style: { 'curve-style': 'haystack', 'haystack-radius': 0, width: 'data(w)', 'line-color': colour('good'), label: 'data(label)', color: text,
        'font-size': 8, 'min-zoomed-font-size': 9, 'text-background-color': back, 'text-background-opacity': .85 } },
      // Each path has a pattern of its own beside its colour; the keys in style.css are the same.
      { selector: 'edge[path="vxlan"]', style: { 'line-style': 'dashed', 'line-dash-pattern': [12, 4] } },
      { selector: 'edge[path="direct"]', style: { 'line-style': 'dashed', 'line-dash-pattern': [30, 4] } },
      { selector: 'edge[path="punched"]', style: { 'line-color': colour('mid'), 'line-style': 'dashed', 'line-dash-pattern': [12, 4, 2, 4] } },
      { selector: 'edge[path="relayed"]', style: { 'line-color': colour('poor'), 'line-style': 'dashed', 'line-dash-pattern': [6, 6] } },
      { selector: 'edge[path="none"]', style: { 'line-color': colour('bad'), 'line-style': 'dotted' } },
      { selector: 'edge[path="relay"]', style: { 'line-color': colour('faint'), 'line-opacity': .45, events: 'no' } },
      { selector: 'edge[use="lost"]', style: { 'line-color': colour('bad'), 'line-style': 'dotted', 'line-opacity': .8 } },
      { selector: 'edge.stale', style: { 'line-color': colour('unknown') } },
      { selector: '.off', style: { display: 'none' } },
      { selector: '.dim', style: { opacity: .12 } },
      { selector: 'core', style: { 'outside-texture-bg-opacity': 0 } },
      { selector: ':selected', style: { 'overlay-color': colour('accent'), 'overlay-opacity': .35, 'overlay-padding': 6, 'z-index': 10 } },
    ];
  };

  // spread places so many nodes around 0: on a ring, so that no path runs through a third node, many like a sunflower's seeds.
  const spread = count => {
    const ring = count === 1 ? 0 : Math.max(.6, count / (2 * Math.PI)) * cell;
    return Array.from({ length: count }, (_, i) => {
      const angle = count > 16 ? i * 2.39996 : i * 2 * Math.PI / count - Math.PI / 2;
      const radius = count > 16 ? cell * .62 * Math.sqrt(i + .5) : ring;
      return { x: radius * Math.cos(angle), y: radius * Math.sin(angle), radius };
    });
  };

  let sites = new Map(); // nodes by site
  const isFolded = site => site !== '' && all.nodes.size > many && (sites.get(site) || []).length > 1 && !opened.has(site);
  const standIn = id => { const n = all.nodes.get(id); return n && isFolded(n.site) ? 'folded ' + n.site : id; };
  // drawnAs is the element that shows a node, a relay or a pair.
  const drawnAs = id => {
    const e = all.edges.get(id);
    if (!e) return standIn(id);
    const ends = [standIn(e.a), standIn(e.b)].sort();
    return ends.includes(e.a) && ends.includes(e.b) ? id : ends[0] === ends[1] ? ends[0] : 'pairs ' + ends.join('|');
  };

  // places packs sites into rows, each a square around its nodes; relays stand in a row above.
  const places = relays => {
    const boxes = [...sites.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true })).map(site => {
      const ids = isFolded(site) ? ['folded ' + site] : sites.get(site).map(n => n.id).sort((a, b) => a.localeCompare(b, 'en', { numeric: true })), spots = spread(ids.length);
      return { site, ids, spots, wide: 2 * Math.max(...spots.map(s => s.radius)) + cell };
    });
    const area = boxes.reduce((sum, b) => sum + (b.wide + gap) * (b.wide + gap + siteLabel), 0);
    const row = Math.max(Math.sqrt(area * 1.4), ...boxes.map(b => b.wide));
    const at = new Map();
    let x = 0, y = 0, high = 0;
    for (const b of boxes) {
      if (x > 0 && x + b.wide > row) { x = 0; y += high + gap + siteLabel; high = 0; }
      const mid = { x: x + b.wide / 2, y: y + b.wide / 2 };
      if (b.site && !isFolded(b.site)) at.set('site ' + b.site, { ...mid, wide: b.wide + 8, name: b.site });
      b.ids.forEach((id, i) => at.set(id, { x: mid.x + b.spots[i].x, y: mid.y + b.spots[i].y }));
      x += b.wide + gap;
      high = Math.max(high, b.wide);
    }
    const used = Math.max(...boxes.map(b => at.get(b.ids[0]).x + b.wide / 2), cell * relays.length);
    relays.forEach((r, i) => at.set('relay ' + r.id, { x: (i + .5) * used / relays.length, y: -gap - siteLabel - cell / 2 }));
    return at;
  };

  const sign = { broken: '✗ ', warning: '! ', unknown: '? ' }; // for eyes that see no difference between red and green
  const nodeData = n => ({ id: n.id, name: (sign[n.state] || '') + n.id, class: 'node', state: n.state, self: n.self || false });
  const relayData = r => ({ id: 'relay ' + r.id, name: (sign[r.state] || '') + 'relay ' + (r.name || r.id), class: 'relay', state: r.state });
  const foldedData = (site, nodes) => {
    const state = rank.find(s => nodes.some(n => n.state === s));
    return { id: 'folded ' + site, name: (sign[state] || '') + site + ': ' + nodes.length, class: 'folded', state, self: nodes.some(n => n.self) };
  };
  const useData = (id, from, relay, lost) => ({ id, source: from, target: 'relay ' + relay, path: 'relay', use: lost ? 'lost' : '', w: lost ? 3 : 1, label: '' });
  // Widths come in steps, and labels where they can be read: cytoscape computes an element's style anew by every change.
  const edgeData = e => {
    const busy = e.forth + e.back, rtt = e.rtt === undefined ? '' : e.rtt + ' ms';
    return { id: e.id, source: e.a, target: e.b, path: e.path, w: wide[e.path] + Math.round(Math.min(5, Math.log10(1 + busy) * 2)),
      label: cy.zoom() < near ? '' : busy ? rtt + ' · ' + Math.round(busy * 10) / 10 + ' Mbit/s' : rtt };
  };
  // pairsData is one edge for all pairs between two ends of which one is a folded site at least, with the path to look at first.
  const pairsData = (id, pairs) => {
    const path = order.find(p => pairs.some(e => e.path === p));
    return { id, source: standIn(pairs[0].a), target: standIn(pairs[0].b), path, w: wide[path], label: cy.zoom() < near ? '' : pairs.length + (pairs.length === 1 ? ' pair' : ' pairs') };
  };
  // elements are what is to be drawn, by ID, each with its group and data.
  const elements = () => {
    const out = new Map(), add = (group, data) => out.set(data.id, { group, data }), uses = new Map(), pairs = new Map();
    for (const [site, nodes] of sites) if (isFolded(site)) add('nodes', foldedData(site, nodes));
    for (const r of all.relays.values()) add('nodes', relayData(r));
    for (const n of all.nodes.values()) {
      const from = standIn(n.id);
      if (from === n.id) add('nodes', nodeData(n));
      for (const u of n.relays || []) {
        const id = 'use ' + from + '|' + u.relay;
        if (all.relays.has(u.relay)) uses.set(id, useData(id, from, u.relay, u.state === 'lost' || uses.has(id) && uses.get(id).use === 'lost'));
      }
    }
    for (const u of uses.values()) add('edges', u);
    for (const e of all.edges.values()) {
      if (!all.nodes.has(e.a) || !all.nodes.has(e.b)) continue;
      const id = drawnAs(e.id);
      if (id === e.id) add('edges', edgeData(e));
      else if (id.startsWith('pairs ') && !hidden.has(e.path)) pairs.has(id) ? pairs.get(id).push(e) : pairs.set(id, [e]);
    }
    for (const [id, of] of pairs) add('edges', pairsData(id, of));
    return out;
  };
  // put adds an element, or changes what differs.
  const put = (group, data, more) => {
    const have = cy.getElementById(data.id);
    if (have.empty()) return cy.add({ group, data, pannable: true, classes: old && data.class !== 'site' ? 'stale' : '', ...more });
    const was = have[0].data(), differs = {};
    let any = false;
    for (const k in data) if (was[k] !== data[k]) { differs[k] = data[k]; any = true; }
    if (any) have.data(differs);
  };
  const hideEdge = e => {
    const off = hidden.has(e.data('path'));
    if (off !== e.hasClass('off')) e.toggleClass('off', off);
  };
  let shape = ''; // which nodes, at which sites: only when that changes are places computed anew

  // What has changed waits while the picture is moved, and a while after it was brought up to date.
  // The while is ten times what that took, so that a large mesh on a slow machine leaves the page usable.
  let all = null, timer = 0, movedAt = -1e9, began = 0, drawnAt = -1e9, pause = 0;
  const drawn = () => {
    if (!began) return;
    drawnAt = performance.now();
    pause = Math.max(100, Math.min(1000, 10 * (drawnAt - began)));
    began = 0;
  };
  const later = () => {
    if (timer) return;
    const now = performance.now();
    timer = setTimeout(() => {
      timer = 0;
      if (performance.now() - movedAt < restMs) later();
      else apply();
    }, Math.max(0, drawnAt + pause - now, movedAt + restMs - now));
  };
  const apply = () => {
    sites = new Map();
    for (const n of all.nodes.values()) sites.has(n.site) ? sites.get(n.site).push(n) : sites.set(n.site, [n]);
    const relays = [...all.relays.values()].sort((a, b) => a.id < b.id ? -1 : 1), now = elements();
    const shapes = [...now.values()].filter(x => x.group === 'nodes').map(x => x.data.id + ' ' + ((all.nodes.get(x.data.id) || {}).site || '')).sort().join('|');
    const at = shapes === shape ? null : places(relays);
    const keptAt = movedAt;
    began = performance.now();
    cy.batch(() => {
      cy.elements('[class!="site"]').filter(x => !now.has(x.id())).remove();
      for (const { group, data } of now.values()) put(group, data, { position: at && at.get(data.id) });
      if (hidden.size) cy.edges().forEach(hideEdge);
      if (!at) return;
      for (const [id, place] of at) if (place.wide) put('nodes', { id, name: place.name, class: 'site', wide: place.wide }, { selectable: false });
      cy.nodes('[class="site"]').filter(s => !at.has(s.id())).remove();
      cy.nodes().positions(n => at.get(n.id()) || { x: 0, y: 0 });
    });
    if (at) {
      shape = shapes;
      Draw.fit();
    }
    if (found) Draw.dim(found);
    movedAt = keptAt; // what was just moved was not moved by a hand
  };
  // fold opens a folded site, or folds an open one.
  const fold = site => {
    if (!opened.delete(site)) opened.add(site);
    apply();
  };

  return {
    start(container, onChosen) {
      chosen = onChosen;
      cy = cytoscape({ container, style: look(), minZoom: .02, maxZoom: 6, wheelSensitivity: .3, boxSelectionEnabled: false, autoungrabify: true, textureOnViewport: true, pixelRatio: Math.min(devicePixelRatio, 1.5) });
      cy.on('tap', e => {
        if (e.target === cy) return chosen(null);
        const id = e.target.id(), kind = e.target.data('class');
        if (kind === 'site') return all.nodes.size > many ? fold(id.slice('site '.length)) : chosen(null);
        if (kind === 'folded') return fold(id.slice('folded '.length));
        if (id.startsWith('pairs ')) return e.target.connectedNodes('[class="folded"]').forEach(x => fold(x.id().slice('folded '.length)));
        if (e.target.isEdge()) return chosen({ edge: id });
        chosen(e.target.data('class') === 'relay' ? { relay: id.slice('relay '.length) } : { node: id });
      });
      // Nothing answers to hovering, and cytoscape would look for what is below the pointer among all elements.
      container.addEventListener('mousemove', e => { if (!e.buttons) e.stopPropagation(); }, true);
      cy.on('render', drawn);
      let labelled = false;
      cy.on('viewport', () => {
        movedAt = performance.now();
        if (labelled === cy.zoom() >= near || !all) return;
        labelled = !labelled;
        later();
      });
      matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => Draw.restyle());
      let wide = container.clientWidth;
      new ResizeObserver(() => {
        cy.resize();
        if (container.clientWidth !== wide) { wide = container.clientWidth; Draw.fit(); }
      }).observe(container);
      return cy;
    },
    restyle() { cy.style(look()); },
    // update takes maps of everything.
    update(everything) {
      const begin = all === null;
      all = everything;
      if (begin) apply();
      else later();
    },
    // stale shows that everything is old, or no longer.
    stale(is) {
      old = is;
      cy.batch(() => cy.elements('[class!="site"]').toggleClass('stale', is));
    },
    // foldAll opens all sites, or folds them if all are open.
    foldAll() {
      if (!all) return;
      const shut = [...sites.keys()].filter(isFolded);
      if (!shut.length) opened.clear();
      for (const s of shut) opened.add(s);
      apply();
    },
    fit() { cy.fit(undefined, 40); if (cy.zoom() > 2.4) { cy.zoom(2.4); cy.center(); } },
    zoom(by) { cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } }); },
    pan(x, y) { cy.panBy({ x, y }); },
    // hide shows no edges of these paths.
    hide(set) {
      hidden = set;
      cy.batch(() => cy.edges().forEach(hideEdge));
      if (all) apply(); // pairs of folded sites are drawn together
    },
    // choose marks one element, or none, and brings it into view. A node's site is opened.
    choose(id) {
      cy.elements(':selected').unselect();
      const node = id && all.nodes.get(id);
      if (node && isFolded(node.site)) fold(node.site);
      const x = id ? cy.getElementById(drawnAs(id)) : cy.collection();
      x.select();
      const box = x.nonempty() && x.renderedBoundingBox();
      if (box && (box.x1 < 0 || box.y1 < 0 || box.x2 > cy.width() || box.y2 > cy.height())) cy.center(x);
    },
    // dim shows what a search has found, and the rest faintly; null: everything.
    dim(only) {
      if (!only && !found) return;
      found = only;
      const shown = found && new Set([...found].map(drawnAs));
      cy.batch(() => cy.elements('[class!="site"]').forEach(x => {
        const dim = !!shown && !shown.has(x.id());
        if (dim !== x.hasClass('dim')) x.toggleClass('dim', dim);
      }));
    },
  };
})();
