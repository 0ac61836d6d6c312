"""The live page in a real browser on a real cluster under load: what a person sees, and that the page asks nobody but the server."""

import asyncio
import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.browser import Watched, browser
from tests.support.cluster import ROOT, Cluster, environment, running_cluster
from transport.key_file import new_key

pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
from playwright.sync_api import expect

STREAMS = 12
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)  # a page's own default does not count for what is expected
COLOURS = """(names) => {
  const canvas = document.getElementById("lanes");
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const wanted = names.map((name) => {
    probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
    probe.fillRect(0, 0, 1, 1);
    return probe.getImageData(0, 0, 1, 1).data.slice(0, 3).join();
  });
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const counts = names.map(() => 0);
  for (let at = 0; at < data.length; at += 4) {
    const index = wanted.indexOf(`${data[at]},${data[at + 1]},${data[at + 2]}`);
    if (index >= 0) counts[index] += 1;
  }
  return counts;
}"""
"""How many pixels of the lanes have each of these colours of the theme."""


UNREADABLE = """() => {
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
    if (a === 1 || !element.parentElement) return [r, g, b];
    return behind(element.parentElement).map((value, at) => value * (1 - a) + [r, g, b][at] * a);
  };
  const found = new Set();
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!texts || !element.checkVisibility() || element.disabled) continue;
    const [one, other] = [light(numbers(getComputedStyle(element).color).slice(0, 3)), light(behind(element))].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5) found.add(`${element.tagName} ${element.id || element.className}: ${contrast.toFixed(2)}`);
  }
  return [...found];
}"""
"""Visible texts whose contrast is below 4.5:1 (WCAG 2.2, 1.4.3 AA)."""
CUT = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    const left_out = ".skip, .hidden, .uplot, textarea, .talk";
    if (!element.checkVisibility() || element.closest(left_out) || style.display.startsWith("inline")) continue;
    const name = `${element.tagName} ${element.id || element.className}`;
    const box = element.getBoundingClientRect();
    const inside = element.closest(".scroll") ?? document.documentElement;
    if (!element.matches(".scroll") && element.scrollWidth > element.clientWidth + 1) found.push(`${name} is cut`);
    if (box.right > inside.getBoundingClientRect().right + 1) found.push(`${name} sticks out`);
  }
  const panels = [...document.querySelectorAll(".panel, .tile")].map((panel) => panel.getBoundingClientRect());
  panels.forEach((one, at) => panels.slice(at + 1).forEach((other) => {
    const apart = one.left >= other.right || other.left >= one.right || one.top >= other.bottom || other.top >= one.bottom;
    if (!apart) found.push(`panels overlap at ${one.top}`);
  }));
  return found;
}"""
"""What does not fit where it is."""


class Load:
    """Streams in a thread, until it is told to stop."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()

    async def _main(self) -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(self._stream(session, number))

    async def _stream(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._stop.is_set():
            body = {"prompt": "a" * (1 + number % 3), "max_tokens": 90, "ignore_eos": True, "stream": True, "temperature": 1.0}
            async with session.post(f"{self._url}/v1/completions", json=body) as answer:
                async for _ in answer.content:
                    if self._stop.is_set():
                        return

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def launch(cluster: Cluster, *arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, str(ROOT / "launch.py"), *arguments]
    return subprocess.run(command, env=environment(cluster.root), capture_output=True, text=True, timeout=100, check=True).stdout


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture
def load(tiny: Cluster) -> Iterator[Load]:
    running = Load(tiny.url)
    yield running
    running.close()


@contextlib.contextmanager
def page_of(opened: Any, cluster: Cluster) -> Iterator[Any]:
    """The page, on which nothing goes wrong until its test is over."""
    with contextlib.closing(opened.new_context(viewport={"width": 1440, "height": 1000})) as context:
        context.set_default_timeout(PATIENCE_MS)
        watched = Watched(context.new_page(), cluster.url)
        watched.page.goto(cluster.url)
        expect(watched.page.locator("#state")).to_have_text("live")
        yield watched.page
        assert watched.troubles == []


@pytest.fixture
def page(opened: Any, tiny: Cluster) -> Iterator[Any]:
    """Of the cluster whose pool is small."""
    with page_of(opened, tiny) as found:
        yield found


@pytest.fixture
def roomy(opened: Any, dice: Cluster) -> Iterator[Any]:
    """Of one that has room for answers which do not end before a test has done something to them."""
    with page_of(opened, dice) as found:
        yield found


def test_lanes_fill_and_a_preemption_is_seen(page: Any, load: Load) -> None:
    page.wait_for_function(f"() => {{ const [run, gone] = ({COLOURS})(['decode', 'preempted']); return run > 500 && gone > 0; }}")
    expect(page.locator("#queue tbody tr").first).to_be_visible()
    assert page.locator("#queue tbody tr td").nth(1).inner_text()
    expect(page.locator("#processes tbody tr")).to_have_count(4)
    expect(page.locator("#processes tbody")).to_contain_text("worker0")
    expect(page.locator("#branches tbody tr").first).to_be_visible()
    expect(page.locator(".tile .value").first).to_have_text(re.compile("[0-9]"))
    assert page.locator("#charts canvas").count() == 6
    page.locator("#theme").click()
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.wait_for_function(f"() => ({COLOURS})(['decode'])[0] > 500")


def test_a_request_is_found_with_the_keyboard_and_cancelled(roomy: Any) -> None:
    roomy.locator("#max_tokens").fill("1900")
    roomy.locator("#message").fill("b")
    roomy.locator("#message").press("Enter")
    roomy.wait_for_function(f"() => ({COLOURS})(['own'])[0] > 0")
    roomy.locator("#lanes").focus()
    roomy.keyboard.press("Shift+Tab")
    roomy.keyboard.press("Tab")
    assert roomy.locator("#lanes").evaluate("(element) => getComputedStyle(element).outlineStyle") == "solid"  # one sees where one is
    detail = roomy.locator("#detail-body")
    for _ in range(64):
        roomy.keyboard.press("ArrowDown")
        if "free" not in roomy.locator("#lanes-told").inner_text():
            break
    roomy.keyboard.press("Enter")
    expect(detail).to_contain_text("/v1/chat/completions")
    for happened in ("came into the queue", "got slot", "prefill", "first token"):
        expect(detail.locator(".moments")).to_contain_text(happened)
    roomy.locator("#cancel").click()
    expect(detail).to_contain_text("Cancelled: cancelled")
    expect(detail.locator(".moments tr").last).to_contain_text("cancelled")
    expect(roomy.locator("#talk .problem")).to_be_visible()
    expect(roomy.locator("#send")).to_have_text("Send")


def test_all_are_cancelled_once_that_is_said_twice(roomy: Any) -> None:
    roomy.locator("#max_tokens").fill("1900")
    roomy.locator("#message").fill("b")
    roomy.locator("#send").click()
    expect(roomy.locator("#talk .token").first).to_be_visible()
    roomy.locator("#cancel-all").click()
    roomy.locator("#confirm button").first.click()
    expect(roomy.locator("#confirm")).to_be_hidden()
    roomy.locator("#cancel-all").click()
    roomy.locator("#confirm-yes").click()
    expect(roomy.locator("#processes-told")).to_have_text(re.compile("^[0-9]+ requests? w(as|ere) cancelled$"))
    expect(roomy.locator("#send")).to_have_text("Send")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_everything_is_legible_and_fits(page: Any, load: Load, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    expect(page.locator("#queue tbody tr").first).to_be_visible()
    expect(page.locator("#processes tbody tr")).to_have_count(4)
    expect(page.locator("#branches tbody tr").first).to_be_visible()
    page.locator("#lanes").press("Enter")
    page.locator("#queue tbody tr[tabindex='0']").nth(4).press("Enter")  # one that has not ended before it is asked for
    expect(page.locator("#detail-what")).to_be_visible()
    for _ in range(3):  # each theme
        assert page.evaluate(UNREADABLE) == []
        assert page.evaluate(CUT) == []
        page.locator("#theme").click()


def test_chat_streams_and_tells_probabilities(page: Any) -> None:
    page.locator("#max_tokens").fill("12")
    page.locator("#message").fill("a")
    page.locator("#send").click()
    expect(page.locator("#chat-told")).to_contain_text("ended by")
    tokens = page.locator("#talk .token")
    assert tokens.count() >= 1
    clear = "rgba(0, 0, 0, 0)"
    style = "(element) => getComputedStyle(element).backgroundColor"
    assert tokens.first.evaluate(style) == clear
    tokens.first.hover()
    expect(page.locator("#chat-told")).to_contain_text("%")
    page.locator("#shade").click()
    page.mouse.move(1, 1)
    assert tokens.first.evaluate(style) != clear
    page.locator("#talk").press("ArrowRight")
    expect(page.locator("#talk .looked")).to_have_count(1)
    page.locator("#charts").press("ArrowLeft")
    expect(page.locator("#charts-note")).to_have_text(re.compile("^at [0-9:]{8}$"))


def test_an_answer_is_stopped_whatever_stands_in_the_fields(roomy: Any) -> None:
    roomy.locator("#max_tokens").fill("1900")
    roomy.locator("#temperature").fill("0.75")  # no multiple of the field's step
    roomy.locator("#message").fill("b")
    roomy.locator("#send").click()
    expect(roomy.locator("#talk .token").first).to_be_visible()
    roomy.locator("#temperature").fill("-1")
    roomy.locator("#send").click()
    expect(roomy.locator("#talk .aside")).to_have_text(re.compile("stopped"))
    expect(roomy.locator("#send")).to_have_text("Send")


def test_a_server_that_is_frozen_is_told_of(opened: Any, models: Path) -> None:
    with running_cluster(models / "chain-byte") as cluster, contextlib.closing(opened.new_page()) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.goto(cluster.url)
        expect(page.locator("#state")).to_have_text("live")
        frontend = psutil.Process(cluster.pid_of("frontend0"))
        frontend.suspend()
        try:
            expect(page.locator("#state")).to_have_text("the server is silent", timeout=PATIENCE_MS)
        finally:
            frontend.resume()
        expect(page.locator("#state")).to_have_text("live", timeout=PATIENCE_MS)


def test_a_request_that_is_forgotten_is_no_longer_shown(opened: Any, models: Path) -> None:
    """Its frontend has died, and another one has the page."""
    with running_cluster(models / "dice-byte", "--frontends", "2") as cluster, contextlib.closing(opened.new_page()) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.goto(cluster.url)
        page.locator("#max_tokens").fill("1500")
        page.locator("#message").fill("b")
        page.locator("#send").click()
        expect(page.locator("#talk .token").first).to_be_visible()
        page.wait_for_function(f"() => ({COLOURS})(['own'])[0] > 0")
        page.locator("#lanes").focus()
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        expect(page.locator("#cancel")).to_be_visible()
        for name in ("frontend0", "frontend1"):
            cluster.kill(name)
        expect(page.locator("#cancel")).to_be_hidden(timeout=PATIENCE_MS)
        expect(page.locator("#detail-empty")).to_have_text(re.compile("^No request"), timeout=PATIENCE_MS)


def test_a_choice_is_still_shown_after_the_scheduler_has_died(opened: Any, models: Path) -> None:
    with running_cluster(models / "dice-byte") as cluster, contextlib.closing(opened.new_page()) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.goto(cluster.url)
        page.evaluate(
            """() => { fetch("/v1/completions", {method: "POST", headers: {"Content-Type": "application/json"},
            body: JSON.stringify({prompt: "b", max_tokens: 2000, n: 3, ignore_eos: true})}); }"""
        )
        page.wait_for_function("() => document.getElementById('lanes-note').textContent.startsWith('3 ')")
        facts = page.locator("#detail-facts")
        page.locator("#lanes").focus()
        for _ in range(2):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(facts).to_contain_text(re.compile("[123] of 3"))
        which = re.search("[123] of 3", facts.inner_text())
        assert which is not None
        cluster.kill("scheduler")
        page.wait_for_timeout(500)
        expect(page.locator("#processes tbody tr", has_text="scheduler").locator("td").nth(4)).to_have_text("1", timeout=PATIENCE_MS)
        page.wait_for_timeout(3000)
        expect(facts).to_contain_text(which.group())
        page.request.delete(f"{cluster.url}/v1/requests")


def test_a_key_is_asked_for_and_an_administrator_drains(opened: Any, models: Path, tmp_path: Path) -> None:
    key, line = new_key("boss", admin=True)
    file = tmp_path / "keys"
    file.write_text(line.text() + "\n")
    file.chmod(0o600)
    with (
        running_cluster(models / "chain-byte", "--api-keys", str(file)) as cluster,
        contextlib.closing(opened.new_context(viewport={"width": 1440, "height": 1000})) as context,
    ):
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.goto(cluster.url)
        for tried in ("pw-wrong", key):
            expect(page.locator("#ask-key")).to_be_visible()
            page.locator("#ask-key").fill(tried)
            page.locator("#ask-key").press("Enter")
        expect(page.locator("#state")).to_have_text("live")
        expect(page.locator("#model")).to_contain_text("administrator")
        page.locator("#drain").click()
        expect(page.locator("#phase")).to_have_text("new requests are refused")
        page.locator("#message").fill("a")
        page.locator("#send").click()
        expect(page.locator("#talk .problem")).to_be_visible()
        page.locator("#drain").click()
        expect(page.locator("#phase")).to_have_text("ready")
        page.locator("#message").fill("a")
        page.locator("#max_tokens").fill("3")
        page.locator("#send").click()
        expect(page.locator("#chat-told")).to_contain_text("ended by")
        page.reload()
        expect(page.locator("#state")).to_have_text("live")  # the tab has kept the key
        assert key not in page.content()
        launch(cluster, "cluster", "reload", "--model", str(models / "dice-byte"))
        expect(page).to_have_title(re.compile("^dice-byte .* Pagewire$"))
        page.locator("#message").fill("a")
        page.locator("#max_tokens").fill("3")
        page.locator("#send").click()
        expect(page.locator("#chat-told")).to_contain_text("ended by")


def test_top_shows_the_same_in_the_terminal(tiny: Cluster) -> None:
    screen = launch(tiny, "top", "--once")
    assert screen.startswith(tiny.model)
    for name in tiny.pids():
        assert name in screen
