// A small Markdown renderer that builds DOM nodes (never HTML text), so that nothing a model writes can become markup.

const el = (name, props = {}, ...children) => {
  const node = Object.assign(document.createElement(name), props);
  node.append(...children);
  return node;
};

function inline(text) {
  const out = document.createDocumentFragment();
  // code, bold, italic, strike, link, bare address
  const pattern = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([\s\S]+?)\*\*|__([\s\S]+?)__|(?<![\w*])\*([^\s*][^*]*?)\*(?![\w*])|(?<![\w_])_([^\s_][^_]*?)_(?![\w_])|~~([\s\S]+?)~~|\[([^\]]*)\]\(([^\s)]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])|\\([\\`*_{}[\]()#+\-.!|~])/g;
  let at = 0;
  for (const m of text.matchAll(pattern)) {
    if (m.index > at) out.append(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[1]) out.append(el('code', {textContent: m[2].trim() || m[2]}));
    else if (m[3] ?? m[4]) out.append(el('strong', {}, inline(m[3] ?? m[4])));
    else if (m[5] ?? m[6]) out.append(el('em', {}, inline(m[5] ?? m[6])));
    else if (m[7]) out.append(el('del', {}, inline(m[7])));
    else if (m[11]) out.append(m[11]);
    else {
      const address = m[9] ?? m[10];
      const label = m[9] ? m[8] : m[10];
      if (/^(https?:|mailto:)/i.test(address)) out.append(el('a', {href: address, rel: 'noopener noreferrer', target: '_blank'}, label));
      else out.append(m[0]);
    }
  }
  if (at < text.length) out.append(text.slice(at));
  return out;
}

function codeBlock(language, text) {
  const copy = el('button', {type: 'button', className: 'quiet', textContent: 'Copy'});
  copy.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = 'Copied';
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  });
  return el('div', {className: 'code'}, el('pre', {tabIndex: 0}, el('code', {textContent: text})),
            el('div', {className: 'label'}, language, copy));
}

const cells = (line) => line.trim().replace(/^\||\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));

function list(lines) {
  const first = lines[0].match(/^(\s*)([-*+]|\d+[.)])\s+/);
  const ordered = /\d/.test(first[2]);
  const node = el(ordered ? 'ol' : 'ul', ordered ? {start: parseInt(first[2], 10)} : {});
  const indent = first[1].length;
  let item = [];
  const flush = () => {
    if (item.length === 0) return;
    const li = el('li');
    const body = blocks(item);
    // A single paragraph in an item is shown without a paragraph's margin.
    if (body.childNodes.length > 0 && body.firstChild.nodeName === 'P') li.append(...body.firstChild.childNodes, ...[...body.childNodes].slice(1));
    else li.append(body);
    node.append(li);
    item = [];
  };
  for (const line of lines) {
    const m = line.match(/^(\s*)([-*+]|\d+[.)])\s+(.*)$/);
    if (m && m[1].length <= indent + 1) {
      flush();
      item.push(m[3]);
    } else {
      item.push(line.replace(new RegExp(`^\\s{0,${indent + 4}}`), ''));
    }
  }
  flush();
  return node;
}

function blocks(lines) {
  const out = document.createDocumentFragment();
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    if (line.trim() === '') { i += 1; continue; }
    let m = line.match(/^\s*(```+|~~~+)\s*([\w+#.-]*)/);
    if (m) {
      const body = [];
      for (i += 1; i < lines.length && !lines[i].trim().startsWith(m[1]); i += 1) body.push(lines[i]);
      out.append(codeBlock(m[2], body.join('\n')));
      i += 1;
      continue;
    }
    m = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    if (m) { out.append(el('h' + Math.min(m[1].length, 4), {}, inline(m[2]))); i += 1; continue; }
    if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) { out.append(el('hr')); i += 1; continue; }
    if (/^\s*>/.test(line)) {
      const body = [];
      for (; i < lines.length && /^\s*>/.test(lines[i]); i += 1) body.push(lines[i].replace(/^\s*> ?/, ''));
      out.append(el('blockquote', {}, blocks(body)));
      continue;
    }
    if (/^\s*([-*+]|\d+[.)])\s+/.test(line)) {
      const body = [];
      for (; i < lines.length; i += 1) {
        const next = lines[i];
        const blankInside = next.trim() === '' && /^(\s{2,}\S|\s*([-*+]|\d+[.)])\s)/.test(lines[i + 1] ?? '');
        if (!blankInside && !/^\s*([-*+]|\d+[.)])\s+/.test(next) && !/^\s{2,}\S/.test(next)) break;
        body.push(next);
      }
      out.append(list(body));
      continue;
    }
    if (line.includes('|') && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] ?? '')) {
      const table = el('table', {}, el('thead', {}, el('tr', {}, ...cells(line).map((cell) => el('th', {scope: 'col'}, inline(cell))))));
      const body = el('tbody');
      for (i += 2; i < lines.length && lines[i].includes('|') && lines[i].trim(); i += 1) {
        body.append(el('tr', {}, ...cells(lines[i]).map((cell) => el('td', {}, inline(cell)))));
      }
      table.append(body);
      out.append(table);
      continue;
    }
    const body = [];
    for (; i < lines.length && lines[i].trim() && !/^\s*(```|~~~|#{1,6}\s|>|([-*+]|\d+[.)])\s+)/.test(lines[i]); i += 1) body.push(lines[i]);
    if (body.length === 0) { body.push(lines[i]); i += 1; }
    out.append(el('p', {}, inline(body.join('\n'))));
  }
  return out;
}

/** Nodes for Markdown text. */
export function markdown(text) {
  return blocks(text.split('\n'));
}

export {el};
