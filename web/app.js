// The chat page. State is one list of messages in the chat API's form; the view is drawn from it.
import {el, markdown} from './markdown.js';

const $ = (id) => document.getElementById(id);
const store = {
  get(key, otherwise) {
    try { return JSON.parse(localStorage.getItem('heirloom.' + key)) ?? otherwise; } catch { return otherwise; }
  },
  set(key, value) {
    try { localStorage.setItem('heirloom.' + key, JSON.stringify(value)); } catch { /* storage off or full: nothing is kept */ }
  },
};

const kIcons = {
  copy: 'M9 9h10v10H9zM5 15V5h10',
  edit: 'M4 20l1-4L16.5 4.5l3 3L8 19z',
  again: 'M20 11a8 8 0 1 0-2.3 6.3M20 5v6h-6',
};
const svgIcon = (name) => {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', kIcons[name]);
  svg.append(path);
  return svg;
};
const action = (name, label, run) => {
  const button = el('button', {type: 'button', className: 'quiet', title: label}, svgIcon(name), label);
  button.addEventListener('click', run);
  return button;
};

let settings = store.get('settings', {});
let messages = [];      // {role, content | text + images, reasoning, calls, figures, error}
let attached = [];      // data URIs waiting in the composer
let running = null;     // AbortController of the answer being written
let takesImages = true;

// ---- drawing --------------------------------------------------------------------------------------------------------

const nearEnd = () => $('main').scrollHeight - $('main').scrollTop - $('main').clientHeight < 90;
const toEnd = () => { $('main').scrollTop = $('main').scrollHeight; };

function drawUser(message, index) {
  const article = el('article', {className: 'user'});
  article.setAttribute('aria-label', 'You');
  if (message.images?.length) {
    article.append(el('div', {className: 'thumbs'}, ...message.images.map((src, i) => el('img', {src, alt: `Picture ${i + 1} of your message`}))));
  }
  if (message.text) article.append(el('div', {className: 'text', textContent: message.text}));
  article.append(el('div', {className: 'actions'}, action('edit', 'Edit', () => edit(article, index)),
                    action('copy', 'Copy', () => navigator.clipboard.writeText(message.text))));
  return article;
}

function edit(article, index) {
  if (running) return;
  const message = messages[index];
  const area = el('textarea', {value: message.text, rows: Math.min(10, message.text.split('\n').length + 1)});
  area.setAttribute('aria-label', 'Edit your message');
  const cancel = el('button', {type: 'button', className: 'quiet', textContent: 'Cancel'});
  const send = el('button', {type: 'submit', className: 'primary wide', textContent: 'Send'});
  const form = el('form', {className: 'edit'}, area, el('div', {className: 'buttons'}, cancel, send));
  cancel.addEventListener('click', draw);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    messages = messages.slice(0, index);
    messages.push({...message, text: area.value});
    answer();
  });
  area.addEventListener('keydown', (event) => { if (event.key === 'Escape') draw(); });
  article.replaceChildren(form);
  area.focus();
}

function drawCall(call, index, open) {
  const card = el('section', {className: 'call'});
  card.setAttribute('aria-label', `Tool call ${call.name}`);
  let shown = call.arguments;
  try { shown = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* still arriving, or cut off */ }
  card.append(el('h3', {}, 'Calls ', el('code', {textContent: call.name})), el('pre', {textContent: shown, tabIndex: 0}));
  if (open) {
    const area = el('textarea', {rows: 1, placeholder: 'What the tool returned'});
    area.setAttribute('aria-label', `Result of ${call.name}`);
    const form = el('form', {}, area, el('button', {type: 'submit', className: 'primary wide', textContent: 'Send result'}));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      messages.push({role: 'tool', id: call.id, name: call.name, text: area.value});
      const wanted = messages[index].calls.map((one) => one.id);
      const given = messages.slice(index + 1).filter((one) => one.role === 'tool').map((one) => one.id);
      if (wanted.every((id) => given.includes(id))) answer(); else draw();
    });
    card.append(form);
  }
  return card;
}

function fillAssistant(article, message, index, live) {
  const parts = [];
  if (message.reasoning) {
    const details = el('details', {className: 'thinking', open: Boolean(message.thinkingOpen)},
                       el('summary', {textContent: live && !message.text ? 'Thinking…' : 'Thoughts'}),
                       el('div', {className: 'md'}, markdown(message.reasoning)));
    details.addEventListener('toggle', () => { message.thinkingOpen = details.open; });
    parts.push(details);
  }
  if (message.text) parts.push(el('div', {className: 'md' + (live ? ' cursor' : '')}, markdown(message.text)));
  const answered = messages.slice(index + 1).filter((one) => one.role === 'tool').map((one) => one.id);
  for (const call of message.calls ?? []) parts.push(drawCall(call, index, !live && !answered.includes(call.id)));
  if (live && !message.text && !message.calls?.length && !message.reasoning) {
    const waiting = el('div', {className: 'waiting'}, el('i'), el('i'), el('i'));
    waiting.setAttribute('role', 'img');
    waiting.setAttribute('aria-label', 'Waiting for the first word');
    parts.push(waiting);
  }
  if (message.error) parts.push(el('p', {className: 'error', role: 'alert', textContent: message.error}));
  if (!live) {
    if (message.finish === 'length') parts.push(el('p', {className: 'notice', textContent: 'The answer stopped at the token limit.'}));
    if (message.stopped) parts.push(el('p', {className: 'notice', textContent: 'Stopped.'}));
    const actions = el('div', {className: 'actions'}, action('copy', 'Copy', () => navigator.clipboard.writeText(message.text)));
    if (index === messages.length - 1) actions.append(action('again', 'Try again', () => { messages = messages.slice(0, index); answer(); }));
    if (message.figures) actions.append(el('span', {className: 'figures', textContent: message.figures}));
    parts.push(actions);
  }
  article.replaceChildren(...parts);
}

function drawOne(message, index) {
  if (message.role === 'user') return drawUser(message, index);
  const article = el('article', {className: message.role});
  if (message.role === 'tool') {
    article.setAttribute('aria-label', `Result of ${message.name}`);
    article.append(el('div', {className: 'tool-result'}, `Result of ${message.name}`, el('pre', {textContent: message.text, tabIndex: 0})));
  } else {
    article.setAttribute('aria-label', 'Answer');
    fillAssistant(article, message, index, message.live);
  }
  return article;
}

function draw() {
  $('log').replaceChildren(...messages.map(drawOne));
  $('welcome').hidden = messages.length > 0;
  $('send').hidden = Boolean(running);
  $('stop').hidden = !running;
  toEnd();
  save();
}

function save() {
  // Pictures are large and stay out of the store; a conversation with them is kept for this visit only.
  if (messages.some((message) => message.images?.length)) return store.set('chat', []);
  store.set('chat', messages.filter((message) => !message.live));
}

// ---- talking to the server ------------------------------------------------------------------------------------------

function requestBody() {
  const list = [];
  if (settings.system) list.push({role: 'system', content: settings.system});
  for (const message of messages) {
    if (message.live || (message.error && !message.text)) continue;
    if (message.role === 'user') {
      const images = (message.images ?? []).map((url) => ({type: 'image_url', image_url: {url}}));
      list.push({role: 'user', content: images.length ? [...images, {type: 'text', text: message.text}] : message.text});
    } else if (message.role === 'tool') {
      list.push({role: 'tool', tool_call_id: message.id, content: message.text});
    } else {
      const item = {role: 'assistant', content: message.text || null};
      if (message.reasoning) item.reasoning_content = message.reasoning;
      if (message.calls?.length) {
        item.tool_calls = message.calls.map((call) => ({id: call.id, type: 'function', function: {name: call.name, arguments: call.arguments}}));
      }
      list.push(item);
    }
  }
  const body = {messages: list, stream: true, stream_options: {include_usage: true}, chat_template_kwargs: {enable_thinking: $('think').checked}};
  for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
    if (settings[name] !== undefined && settings[name] !== '') body[name] = Number(settings[name]);
  }
  if (settings.tools) body.tools = JSON.parse(settings.tools);
  return body;
}

const headers = () => ({'Content-Type': 'application/json', ...(settings.key ? {Authorization: 'Bearer ' + settings.key} : {})});

/** Yields the JSON of each event of a response. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf('\n\n')) >= 0) {
      const data = text.slice(0, end).split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
      text = text.slice(end + 2);
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

function take(message, event, clock) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) message.usage = event.usage;
  const choice = event.choices?.[0];
  if (!choice) return;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  const delta = choice.delta ?? {};
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    clock.first ??= performance.now();
    clock.last = performance.now();
  }
  message.text += delta.content ?? '';
  message.reasoning += delta.reasoning_content ?? '';
  for (const piece of delta.tool_calls ?? []) {
    const call = message.calls[piece.index] ??= {id: piece.id, name: '', arguments: ''};
    call.name += piece.function?.name ?? '';
    call.arguments += piece.function?.arguments ?? '';
  }
}

function figures(message, clock) {
  if (!message.usage) return '';
  const {prompt_tokens: prompt, completion_tokens: made, prompt_tokens_details: details} = message.usage;
  const parts = [];
  // An answer that came in one piece has no time between its tokens; then the time since the question counts.
  const between = (clock.last - clock.first) / 1000;
  const [tokens, seconds] = between > 0.002 ? [made - 1, between] : [made, (clock.last - clock.asked) / 1000];
  if (seconds > 0) parts.push(`${(tokens / seconds).toFixed(1)} tokens/s`);
  parts.push(`${made} tokens`, `${prompt} in the prompt`);
  if (details?.cached_tokens) parts.push(`${details.cached_tokens} cached`);
  return parts.join(' · ');
}

async function answer() {
  if (running) return;
  const message = {role: 'assistant', text: '', reasoning: '', calls: [], live: true};
  running = new AbortController();
  messages.push(message);
  draw();
  const index = messages.length - 1;
  const article = $('log').lastElementChild;
  article.setAttribute('aria-busy', 'true');
  $('status').textContent = 'The answer is being written.';
  const clock = {asked: performance.now()};
  let planned = false;
  const show = () => {
    planned = false;
    if (!message.live) return;
    const follow = nearEnd();
    fillAssistant(article, message, index, true);
    if (follow) toEnd();
  };
  try {
    const response = await fetch('v1/chat/completions', {method: 'POST', headers: headers(), body: JSON.stringify(requestBody()), signal: running.signal});
    if (!response.ok) {
      const problem = await response.json().catch(() => null);
      throw new Error(problem?.error?.message ?? `The server answered ${response.status}.`);
    }
    for await (const event of events(response)) {
      take(message, event, clock);
      if (!planned) {
        planned = true;
        requestAnimationFrame(show);
      }
    }
  } catch (error) {
    if (error.name === 'AbortError') message.stopped = true;
    else message.error = error instanceof TypeError ? 'The server cannot be reached.' : error.message;
  }
  message.live = false;
  message.figures = figures(message, clock);
  running = null;
  draw();
  $('status').textContent = message.error ? 'The answer failed.' : message.stopped ? 'The answer was stopped.' : 'The answer is complete.';
  $('input').focus({preventScroll: true});
}

// ---- composer -------------------------------------------------------------------------------------------------------

function grow() {
  const input = $('input');
  input.style.height = 'auto';
  input.style.height = input.scrollHeight + 'px';
}

function drawAttached() {
  $('pictures').replaceChildren(...attached.map((src, i) => {
    const remove = el('button', {type: 'button', textContent: '×'});
    remove.setAttribute('aria-label', `Remove picture ${i + 1}`);
    remove.addEventListener('click', () => { attached.splice(i, 1); drawAttached(); });
    return el('figure', {}, el('img', {src, alt: `Attached picture ${i + 1}`}), remove);
  }));
}

async function attach(files) {
  for (const file of files) {
    if (!file.type.startsWith('image/')) continue;
    if (!takesImages) {
      $('status').textContent = 'This model does not take pictures.';
      return;
    }
    const uri = await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    });
    attached.push(uri);
  }
  drawAttached();
  $('input').focus();
}

function send(event) {
  event?.preventDefault();
  const text = $('input').value.trim();
  if (running || (!text && attached.length === 0)) return;
  messages.push({role: 'user', text, images: attached});
  attached = [];
  drawAttached();
  $('input').value = '';
  grow();
  answer();
}

$('composer').addEventListener('submit', send);
$('input').addEventListener('input', grow);
$('input').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send(event);
});
$('stop').addEventListener('click', () => running?.abort());
$('attach').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', async () => {
  await attach($('file').files);
  $('file').value = '';
});
document.addEventListener('paste', (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (files.some((file) => file.type.startsWith('image/'))) {
    event.preventDefault();
    attach(files);
  }
});
let dragDepth = 0;
document.addEventListener('dragenter', (event) => {
  if (![...event.dataTransfer.types].includes('Files')) return;
  dragDepth += 1;
  $('drop').hidden = false;
});
document.addEventListener('dragleave', () => {
  dragDepth = Math.max(0, dragDepth - 1);
  if (dragDepth === 0) $('drop').hidden = true;
});
document.addEventListener('dragover', (event) => event.preventDefault());
document.addEventListener('drop', (event) => {
  event.preventDefault();
  dragDepth = 0;
  $('drop').hidden = true;
  attach(event.dataTransfer.files);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && running && !$('settings').open) running.abort();
  if (event.altKey && event.key.toLowerCase() === 'n') {
    event.preventDefault();
    newChat();
  }
});

function newChat() {
  running?.abort();
  messages = [];
  draw();
  $('input').focus();
}
$('new-chat').addEventListener('click', newChat);

// ---- settings -------------------------------------------------------------------------------------------------------

const kSettings = ['system', 'temperature', 'top_p', 'max_tokens', 'seed', 'tools', 'key'];

$('open-settings').addEventListener('click', () => {
  for (const name of kSettings) $('set-' + name).value = settings[name] ?? '';
  $('tools-error').hidden = true;
  $('settings').showModal();
});
$('save-settings').addEventListener('click', (event) => {
  const tools = $('set-tools').value.trim();
  try {
    if (tools && !Array.isArray(JSON.parse(tools))) throw new Error('it must be an array');
  } catch (error) {
    event.preventDefault();
    $('tools-error').textContent = 'The tools are not valid JSON: ' + error.message;
    $('tools-error').hidden = false;
    return;
  }
  settings = Object.fromEntries(kSettings.map((name) => [name, $('set-' + name).value.trim()]).filter(([, value]) => value !== ''));
  store.set('settings', settings);
  describeModel();
});
$('reset-settings').addEventListener('click', () => { for (const name of kSettings) $('set-' + name).value = ''; });
$('theme').addEventListener('click', () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('heirloom.theme', document.documentElement.dataset.theme); } catch { /* not kept */ }
});
$('think').addEventListener('change', () => store.set('think', $('think').checked));

async function describeModel() {
  try {
    const response = await fetch('v1/models', {headers: headers()});
    const model = (await response.json()).data[0];
    $('model').textContent = model.id;
    $('model').title = `${model.id}, context ${model.context_length} tokens`;
    document.title = `${model.id} · heirloom`;
    takesImages = model.accepts_images;
    $('attach').hidden = !takesImages;
  } catch {
    $('model').textContent = '';
  }
}

for (const idea of ['Explain how a rainbow forms, in three sentences.', 'Write a haiku about an old computer.', 'List five uses for a brick as a table.', 'What is the capital of France?']) {
  const button = el('button', {type: 'button', textContent: idea});
  button.addEventListener('click', () => {
    $('input').value = idea;
    send();
  });
  $('ideas').append(button);
}

$('think').checked = store.get('think', false);
messages = store.get('chat', []);
draw();
describeModel();
$('input').focus();
