"""The web page in a real browser: python browser_checks.py BASE_URL SCREENSHOT_FOLDER [PICTURE ANSWER]. Exits non-zero when a check fails.

With PICTURE and ANSWER the server has a real model, which must give that answer to the dropped picture; otherwise the answers are
those of clients_test.cc.
"""
import pathlib
import sys

from client_checks import png  # noqa: E402  (takes its address from the same argument)
from playwright.sync_api import expect, sync_playwright

BASE = sys.argv[1].rstrip("/")
SHOTS = pathlib.Path(sys.argv[2])
PICTURE, ANSWER = (pathlib.Path(sys.argv[3]).read_bytes(), sys.argv[4]) if len(sys.argv) > 3 else (png(), None)
SHOTS.mkdir(parents=True, exist_ok=True)
TIMEOUT = 60_000
expect.set_options(timeout=TIMEOUT)

DROP = """([selector, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], 'picture.png', {type: 'image/png'}));
  const target = document.querySelector(selector);
  for (const type of ['dragenter', 'dragover', 'drop']) target.dispatchEvent(new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true}));
}"""
# Every state of the text that the reader gets to see.
WATCH = """() => {
  window.seen = [];
  new MutationObserver(() => {
    const text = [...document.querySelectorAll('article.assistant .md')].at(-1)?.textContent ?? '';
    if (text !== window.seen.at(-1)) window.seen.push(text);
  }).observe(document.getElementById('log'), {childList: true, subtree: true, characterData: true});
}"""


def streamed(page):
    """The answer grew before the reader's eyes: each state begins with the one before."""
    seen = [text for text in page.evaluate("window.seen") if text]
    assert len(seen) >= (1 if ANSWER else 2), seen  # a small model can be done within one frame
    assert all(after.startswith(before[: len(before) // 2]) for before, after in zip(seen, seen[1:])), seen


def finished(page):
    expect(page.locator("#send")).to_be_visible(timeout=TIMEOUT)
    expect(page.locator("article.assistant").last.locator(".actions")).to_be_visible(timeout=TIMEOUT)


def ask(page, text):
    page.locator("#input").fill(text)
    page.keyboard.press("Enter")


def check(browser, width, height, theme):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    problems, foreign = [], []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: foreign.append(request.url) if not request.url.startswith((BASE, "data:", "blob:")) else None)
    page.goto(BASE + "/")
    expect(page.locator("#model")).not_to_be_empty()
    page.screenshot(path=SHOTS / f"welcome-{width}-{theme}.png")

    # A dropped picture is shown, sent, and answered.
    page.evaluate(DROP, ["body", list(PICTURE)])
    expect(page.locator("#pictures img")).to_have_count(1)
    page.evaluate(WATCH)
    ask(page, "Describe the picture.")
    expect(page.locator("article.user .thumbs img")).to_be_visible()
    finished(page)
    answer = page.locator("article.assistant").last
    expect(answer.locator(".figures")).to_contain_text("tokens/s")
    if ANSWER:
        expect(answer.locator(".md")).to_have_text(ANSWER)
    else:
        expect(answer.locator("strong")).to_have_text("red")
        expect(answer.locator("pre code")).to_have_text("print('red')")
        expect(answer.locator("td").first).to_have_text("red")
    streamed(page)
    page.screenshot(path=SHOTS / f"picture-{width}-{theme}.png")

    # Try again, edit, and a second turn.
    answer.get_by_role("button", name="Try again").click()
    finished(page)
    expect(page.locator("article.assistant")).to_have_count(1)
    if ANSWER:
        expect(answer.locator(".md")).to_have_text(ANSWER)
        expect(answer.locator(".figures")).to_contain_text("cached")
    page.locator("article.user").hover()
    page.locator("article.user").get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("Which color?")
    page.get_by_role("button", name="Send", exact=True).first.click()
    finished(page)
    expect(page.locator("article.user .text")).to_have_text("Which color?")
    ask(page, "Tell me more.")
    finished(page)
    expect(page.locator("article.assistant")).to_have_count(2)

    # Stop: by the button and by Escape. A real model is stopped while it reads a long message, which it never saw before.
    for way, stop in enumerate((lambda: page.locator("#stop").click(), lambda: page.keyboard.press("Escape"))):
        page.get_by_role("button", name="New chat").click()
        ask(page, " ".join(f"{width}-{way}-{i}" for i in range(1500)) if ANSWER else "long")
        expect(page.locator("#stop")).to_be_visible()
        stop()
        finished(page)
        expect(page.locator(".notice")).to_have_text("Stopped.")

    # Tools: the call is shown, its result goes back.
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Settings").click()
    page.locator("#set-tools").fill('[{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": '
                                    '{"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}}]')
    page.screenshot(path=SHOTS / f"settings-{width}-{theme}.png")
    page.get_by_role("button", name="Done").click()
    ask(page, "Add 2 and 3.")
    finished(page)
    if not ANSWER:
        expect(page.locator(".call h3")).to_contain_text("add")
        page.screenshot(path=SHOTS / f"tool-{width}-{theme}.png")
        page.get_by_label("Result of add").fill("5")
        page.get_by_role("button", name="Send result").click()
        finished(page)
        expect(page.locator("article.assistant")).to_have_count(2)

    # Nothing scrolls sideways; everything that can be pressed has a name; no request left for elsewhere.
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), "the page is wider than its window"
    unnamed = page.evaluate("[...document.querySelectorAll('button, input, textarea')].filter(e => !e.ariaLabel && !e.textContent.trim() && !e.labels?.length "
                            "&& !e.ariaHidden).map(e => e.outerHTML)")
    assert not unnamed, unnamed
    assert not foreign, foreign
    assert not problems, problems
    # Keyboard alone: the skip link leads to the message box.
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "input"
    context.close()


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", timeout=120_000,
                                       args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
    for width, height, theme in ((1440, 900, "light"), (390, 844, "dark")):
        check(browser, width, height, theme)
        print(f"ok      page at {width} px, {theme}", flush=True)
    browser.close()
