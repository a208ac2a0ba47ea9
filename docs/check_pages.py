"""Reads every page in a browser, at the width of a desk and of a phone.

Headless Chromium shows each page in a frame of the width. What is wider than
the frame, a picture that does not load and a link to nowhere are errors.
"""

import html
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

WIDTHS = (1280, 390)
BROWSERS = ('chromium', 'chromium-browser', 'google-chrome')
PER_RUN = 25

SCRIPT = """
<!doctype html><body><script>
const pages = %s, widths = %s, found = [];
const wait = ms => new Promise(go => setTimeout(go, ms));
async function look(page, width) {
  const frame = document.createElement('iframe');
  frame.style.width = width + 'px';
  frame.style.height = '900px';
  frame.style.border = 0;
  document.body.append(frame);
  await new Promise(go => { frame.onload = go; frame.src = page; });
  await wait(300);
  const inside = frame.contentDocument;
  const wide = inside.documentElement.scrollWidth;
  if (wide > width + 1) found.push([page, width, 'is ' + wide + ' wide']);
  for (const image of inside.images)
    if (image.complete && !image.naturalWidth)
      found.push([page, width, 'shows no ' + image.src]);
  frame.remove();
}
(async () => {
  for (const page of pages)
    for (const width of widths) await look(page, width);
  const result = document.createElement('pre');
  result.id = 'found';
  result.textContent = JSON.stringify(found);
  document.body.append(result);
})();
</script></body>
"""


class Links(HTMLParser):
    """The links and anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(
        self, tag: str, attrs: list[tuple[str, str | None]]
    ) -> None:
        """Collects what an element links to, and its name."""
        for key, value in attrs:
            if value and key in ('href', 'src'):
                self.links.append(value)
            elif value and key in ('id', 'name'):
                self.anchors.add(value)


def broken_links(root: Path) -> Iterator[str]:
    """Links between the pages that lead nowhere.

    Args:
        root (Path): the folder of the pages.
    """
    read = {}
    for page in sorted(root.rglob('*.html')):
        read[page.resolve()] = Links()
        read[page.resolve()].feed(page.read_text())
    for page, links in read.items():
        for link in links.links:
            if re.match(r'[a-z]+:', link):
                continue
            path, anchor = urldefrag(unquote(link))
            path = path.partition('?')[0]
            target = (page.parent / path).resolve() if path else page
            where = page.relative_to(root.resolve())
            if not target.exists():
                yield f'{where} links to {link}, which is not there'
            elif anchor and anchor not in read.get(target, links).anchors:
                yield f'{where} links to {link}, which has no such anchor'


def seen_in_browser(root: Path, browser: str) -> Iterator[str]:
    """What does not fit, and pictures that do not load.

    Args:
        root (Path): the folder of the pages.
        browser (str): the program.
    """
    pages = [
        str(page.relative_to(root))
        for page in sorted(root.rglob('*.html'))
        if not {'_modules', '_static', '_sources'} & set(page.parts)
    ]
    handler = partial(Quiet, directory=str(root))
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wrapper = root / 'look.html'
    try:
        for start in range(0, len(pages), PER_RUN):
            some = pages[start : start + PER_RUN]
            wrapper.write_text(SCRIPT % (json.dumps(some), json.dumps(WIDTHS)))
            address = f'http://127.0.0.1:{server.server_port}/look.html'
            for page, width, what in ask(browser, address):
                yield f'{page} at {width} pixels {what}'
    finally:
        wrapper.unlink(missing_ok=True)
        server.shutdown()


def ask(browser: str, address: str) -> list[tuple[str, int, str]]:
    """What the script on a page has found."""
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                *(browser, '--headless', '--no-sandbox', '--disable-gpu'),
                *('--disable-quic', '--no-first-run', '--disable-sync'),
                '--disable-background-networking',
                '--disable-component-update',
                f'--user-data-dir={profile}',
                '--window-size=1400,1000',
                '--virtual-time-budget=120000',
                *('--dump-dom', address),
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if match is None:
        sys.exit(f'{browser} did not finish: {done.stderr[-500:]}')
    return [tuple(entry) for entry in json.loads(html.unescape(match[1]))]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def main() -> None:
    """The command line: the folder of the pages."""
    root = Path(sys.argv[1])
    errors = list(broken_links(root))
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f'no {BROWSERS[0]}: the pages are not looked at', flush=True)
    else:
        errors += seen_in_browser(root, browser)
    for error in errors:
        print(error)
    if errors:
        sys.exit(f'{len(errors)} errors in the pages')


if __name__ == '__main__':
    main()
