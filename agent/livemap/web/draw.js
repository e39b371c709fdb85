'use strict';
// The picture: what page.js hands on, drawn by cytoscape. Places are computed here, so that a node stays where it is.

const Draw = (() => {
  const cell = 64, gap = 70, siteLabel = 30; // of the picture, in its own units
  const wide = { native: 5, vxlan: 5, direct: 3, punched: 3, relayed: 3, none: 4 };
  const near = 1.1; // the zoom from which on paths are labelled: below, nobody could read it
  const restMs = 200; // how long after the hand has moved the picture it is brought up to date
  let cy, chosen = () => {}, hidden = new Set(), found = null;

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
        'z-compound-depth': 'bottom', events: 'no' } },
      { selector: 'edge', style: { 'curve-style': 'haystack', 'haystack-radius': 0, width: 'data(w)', 'line-color': colour('good'), label: 'data(label)', color: text,
        'font-size': 8, 'min-zoomed-font-size': 9, 'text-background-color': back, 'text-background-opacity': .85 } },
      { selector: 'edge[path="punched"]', style: { 'line-color': colour('mid') } },
      { selector: 'edge[path="relayed"]', style: { 'line-color': colour('poor'), 'line-style': 'dashed' } },
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

  // places packs sites into rows, each a square around its nodes; relays stand in a row above.
  const places = (nodes, relays) => {
    const sites = new Map();
    for (const n of nodes) {
      if (!sites.has(n.site)) sites.set(n.site, []);
      sites.get(n.site).push(n.id);
    }
    const boxes = [...sites.keys()].sort((a, b) => a.localeCompare(b, 'en', { numeric: true })).map(site => {
      const ids = sites.get(site).sort((a, b) => a.localeCompare(b, 'en', { numeric: true })), spots = spread(ids.length);
      return { site, ids, spots, wide: 2 * Math.max(...spots.map(s => s.radius)) + cell };
    });
    const area = boxes.reduce((sum, b) => sum + (b.wide + gap) * (b.wide + gap + siteLabel), 0);
    const row = Math.max(Math.sqrt(area * 1.4), ...boxes.map(b => b.wide));
    const at = new Map();
    let x = 0, y = 0, high = 0;
    for (const b of boxes) {
      if (x > 0 && x + b.wide > row) { x = 0; y += high + gap + siteLabel; high = 0; }
      const mid = { x: x + b.wide / 2, y: y + b.wide / 2 };
      if (b.site) at.set('site ' + b.site, { ...mid, wide: b.wide + 8, name: b.site });
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
  const useData = (n, u) => ({ id: 'use ' + n.id + '|' + u.relay, source: n.id, target: 'relay ' + u.relay, path: 'relay', use: u.state, w: u.state === 'lost' ? 3 : 1, label: '' });
  // Widths come in steps, and labels where they can be read: cytoscape computes an element's style anew by every change.
  const edgeData = e => {
    const busy = e.forth + e.back, rtt = e.rtt === undefined ? '' : e.rtt + ' ms';
    return { id: e.id, source: e.a, target: e.b, path: e.path, w: wide[e.path] + Math.round(Math.min(5, Math.log10(1 + busy) * 2)),
      label: cy.zoom() < near ? '' : busy ? rtt + ' · ' + Math.round(busy * 10) / 10 + ' Mbit/s' : rtt };
  };
  // put adds an element, or changes what differs.
  const put = (group, data, more) => {
    const have = cy.getElementById(data.id);
    if (have.empty()) return cy.add({ group, data, pannable: true, ...more });
    const old = have[0].data(), differs = {};
    let any = false;
    for (const k in data) if (old[k] !== data[k]) { differs[k] = data[k]; any = true; }
    if (any) have.data(differs);
  };
  const hideEdge = e => {
    const off = hidden.has(e.data('path'));
    if (off !== e.hasClass('off')) e.toggleClass('off', off);
  };
  let shape = ''; // which nodes, at which sites: only when that changes are places computed anew

  // What has changed waits while the picture is moved, and a while after it was brought up to date.
  const kinds = ['nodes', 'relays', 'edges'], elementOf = { nodes: id => id, relays: id => 'relay ' + id, edges: id => id };
  const waiting = Object.fromEntries(kinds.map(k => [k, new Map()])), gone = Object.fromEntries(kinds.map(k => [k, new Set()]));
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
    const nodes = [...all.nodes.values()], relays = [...all.relays.values()].sort((a, b) => a.id < b.id ? -1 : 1);
    const now = nodes.map(n => n.id + ' ' + n.site).sort().join('|') + '#' + relays.map(r => r.id).join('|');
    const at = now === shape ? null : places(nodes, relays);
    const keptAt = movedAt;
    began = performance.now();
    cy.batch(() => {
      for (const kind of kinds) for (const id of gone[kind]) cy.getElementById(elementOf[kind](id)).remove();
      for (const n of waiting.nodes.values()) put('nodes', nodeData(n), { position: at && at.get(n.id) });
      for (const r of waiting.relays.values()) put('nodes', relayData(r));
      for (const n of waiting.nodes.values()) {
        const uses = (n.relays || []).filter(u => all.relays.has(u.relay)).map(u => useData(n, u)), now = new Set(uses.map(u => u.id));
        cy.getElementById(n.id).connectedEdges('[path="relay"]').filter(x => !now.has(x.id())).remove();
        for (const u of uses) put('edges', u, { classes: hidden.has('relay') ? 'off' : '' });
      }
      for (const e of waiting.edges.values()) {
        if (!all.nodes.has(e.a) || !all.nodes.has(e.b)) continue;
        put('edges', edgeData(e), { classes: hidden.has(e.path) ? 'off' : '' });
        if (hidden.size) hideEdge(cy.getElementById(e.id));
      }
      if (!at) return;
      for (const [id, place] of at) if (place.wide) put('nodes', { id, name: place.name, class: 'site', wide: place.wide }, { selectable: false });
      cy.nodes('[class="site"]').filter(s => !at.has(s.id())).remove();
      cy.nodes().positions(n => at.get(n.id()) || { x: 0, y: 0 });
    });
    for (const kind of kinds) { waiting[kind].clear(); gone[kind].clear(); }
    if (at) {
      shape = now;
      Draw.fit();
    }
    movedAt = keptAt; // what was just moved was not moved by a hand
  };

  return {
    start(container, onChosen) {
      chosen = onChosen;
      cy = cytoscape({ container, style: look(), minZoom: .02, maxZoom: 6, wheelSensitivity: .3, boxSelectionEnabled: false, autoungrabify: true, textureOnViewport: true, pixelRatio: Math.min(devicePixelRatio, 1.5) });
      cy.on('tap', e => {
        if (e.target === cy) return chosen(null);
        if (e.target.isEdge()) return chosen({ edge: e.target.id() });
        chosen(e.target.data('class') === 'relay' ? { relay: e.target.id().slice('relay '.length) } : { node: e.target.id() });
      });
      // Nothing answers to hovering, and cytoscape would look for what is below the pointer among all elements.
      container.addEventListener('mousemove', e => { if (!e.buttons) e.stopPropagation(); }, true);
      cy.on('render', drawn);
      let labelled = false;
      cy.on('viewport', () => {
        movedAt = performance.now();
        if (labelled === cy.zoom() >= near || !all) return;
        labelled = !labelled;
        for (const e of all.edges.values()) waiting.edges.set(e.id, e);
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
    // update takes maps of everything, and what of it has changed or is gone.
    update(everything, news, old) {
      const begin = all === null;
      all = everything;
      for (const kind of kinds) {
        for (const id of old[kind]) { gone[kind].add(id); waiting[kind].delete(id); }
        for (const x of news[kind]) { gone[kind].delete(x.id); waiting[kind].set(x.id, x); }
      }
      if (begin) apply();
      else later();
    },
    // stale shows that everything is old, or no longer.
    stale(is) { cy.batch(() => cy.elements('[class!="site"]').toggleClass('stale', is)); },
    fit() { cy.fit(undefined, 40); if (cy.zoom() > 2.4) { cy.zoom(2.4); cy.center(); } },
    zoom(by) { cy.zoom({ level: cy.zoom() * by, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } }); },
    pan(x, y) { cy.panBy({ x, y }); },
    // hide shows no edges of these paths.
    hide(set) {
      hidden = set;
      cy.batch(() => cy.edges().forEach(hideEdge));
    },
    // choose marks one element, or none, and brings it into view.
    choose(id) {
      cy.elements(':selected').unselect();
      const x = id ? cy.getElementById(id) : cy.collection();
      x.select();
      const box = x.nonempty() && x.renderedBoundingBox();
      if (box && (box.x1 < 0 || box.y1 < 0 || box.x2 > cy.width() || box.y2 > cy.height())) cy.center(x);
    },
    // dim shows what a search has found, and the rest faintly; null: everything.
    dim(only) {
      if (!only && !found) return;
      found = only;
      cy.batch(() => cy.elements('[class!="site"]').forEach(x => {
        const dim = !!found && !found.has(x.id());
        if (dim !== x.hasClass('dim')) x.toggleClass('dim', dim);
      }));
    },
  };
})();
