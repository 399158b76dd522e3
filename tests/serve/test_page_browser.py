"""The page in a headless Chromium, driven by Selenium: lines, keys, themes, phones, no JavaScript."""

from __future__ import annotations

import asyncio
import shutil
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the extra dev has selenium")

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait
from support.serving import serving

from dupmae_ir.serve.http_server import make_server
from dupmae_ir.serve.run import listen

CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER),
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
]


@pytest.fixture(scope="module")
def address(folders: dict[str, Path]) -> Iterator[str]:
    with serving(folders["docs"], folders["other"], port=0) as client:
        config = client.service.config
        listener = listen(config)
        listener.listen(64)
        server = make_server(client.app, config, lambda: None)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)


def options(scripts: bool = True) -> Any:
    made = webdriver.ChromeOptions()
    made.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
    ):
        made.add_argument(flag)
    made.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not scripts:
        made.add_experimental_option(
            "prefs", {"profile.managed_default_content_settings.javascript": 2}
        )
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        driver = webdriver.Chrome(options(), webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def run(browser: Any, script: str, *arguments: Any) -> Any:
    return browser.execute_script(script, *arguments)


def wait_for(browser: Any, script: str) -> Any:
    """What a script returns once it is true: the page draws and navigates in its own time."""
    return WebDriverWait(browser, 30).until(lambda page: page.execute_script(script))


def width(browser: Any, pixels: int, height: int = 900) -> None:
    """Make the page this wide; a window has a least width, the device metrics have none."""
    metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


AUDIT = Path(__file__).with_name("contrast.js").read_text()


def test_lines_join_the_places_of_a_document(browser: Any, address: str) -> None:
    width(browser, 1400)
    browser.get(f"{address}/?q=lock+queue")
    wait_for(browser, "return document.querySelector('.links path')")
    lines = run(
        browser, "return [...document.querySelectorAll('.links path')].map((p) => p.dataset.docid)"
    )
    shared = run(
        browser,
        "const ids = (s) => [...document.querySelectorAll(s + ' [data-docid]')].map((e) => e.dataset.docid);"
        "const main = new Set(ids('.main'));"
        "return [...ids('.side.dense'), ...ids('.side.impact')].filter((d) => main.has(d))",
    )
    assert sorted(lines) == sorted(shared) != []
    ends = run(
        browser,
        "const p = document.querySelector('.links path');"
        "const box = document.getElementById('columns').getBoundingClientRect();"
        "const item = document.querySelector('.side.dense [data-docid=\"' + p.dataset.docid + '\"]');"
        "const e = item.getBoundingClientRect();"
        "return [p.getPointAtLength(0).y + box.top - e.top, e.height]",
    )
    assert 0 <= ends[0] <= ends[1]
    run(
        browser,
        "document.querySelector('.side [data-docid]').dispatchEvent(new PointerEvent('pointerenter'))",
    )
    assert run(browser, "return document.querySelectorAll('.near').length") >= 2


@pytest.mark.parametrize("pixels", [390, 1400])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read(browser: Any, address: str, pixels: int, theme: str) -> None:
    """Contrast of every visible text against what is behind it, and nothing wider than the window."""
    width(browser, pixels)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for state in ("/", "/?q=lock+queue", "/?q=lock&compare=other", "/?q=a&index=nope"):
        browser.get(address + state)
        run(
            browser,
            "localStorage.clear(); for (const d of document.querySelectorAll('details')) d.open = true",
        )
        assert run(browser, AUDIT) == []
        assert run(browser, "return document.documentElement.scrollWidth") <= pixels
        ground = run(browser, "return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(255, 255, 255)" if theme == "light" else "rgb(16, 22, 26)")
    assert (
        run(browser, "return getComputedStyle(document.querySelector('.message')).display")
        != "none"
    )


def test_a_phone_shows_one_list(browser: Any, address: str) -> None:
    width(browser, 390)
    browser.get(f"{address}/?q=lock+queue")
    visible = (
        "return [...document.querySelectorAll('.list')]"
        ".filter((e) => e.checkVisibility()).map((e) => e.ariaLabel)"
    )
    assert run(browser, visible) == ["By both"]
    # 310 pixels, and 48 for a note: no word of the model with hashed words is in a text.
    assert run(browser, "return document.querySelector('.card').getBoundingClientRect().top") < 400
    options = "return document.querySelector('.options').checkVisibility()"
    assert not run(browser, options)
    run(browser, "document.querySelector('#q').focus()")
    assert run(browser, options)
    run(
        browser,
        "[...document.querySelectorAll('.switch a')].find((a) => a.textContent === 'By words').click()",
    )
    wait_for(
        browser, "return location.search.includes('mode=impact') && document.querySelector('.list')"
    )
    assert run(browser, visible) == ["By words"]
    assert "mode=impact" in browser.current_url


def test_keys(browser: Any, address: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    width(browser, 1400)
    browser.get(f"{address}/?q=lock+queue")
    focused = "return document.activeElement.id"
    press = lambda key: ActionChains(browser).send_keys(key).perform()  # noqa: E731
    for key, expected in (("j", "m1"), ("j", "m2"), ("k", "m1"), ("k", "m1")):
        press(key)
        assert run(browser, focused) == expected
    press("o")
    assert run(browser, "return document.querySelector('#m1 .why').open")
    press("t")
    assert run(browser, "return document.documentElement.dataset.theme") in ("dark", "light")
    press("/")
    assert run(browser, focused) == "q"
    press("j")  # letters are letters in a field
    assert run(browser, "return document.getElementById('q').value").endswith("j")


def test_history_and_links(browser: Any, address: str) -> None:
    browser.get(address)
    run(browser, "localStorage.clear()")
    for query in ("lock", "queue <b>", "lock"):
        browser.get(address)
        run(
            browser,
            "const f = document.querySelector('form[role=search]'); f.elements.q.value = arguments[0];"
            "f.requestSubmit()",
            query,
        )
        wait_for(browser, "return location.search && document.readyState === 'complete'")
    assert browser.current_url == f"{address}/?q=lock"
    browser.get(address)
    wait_for(browser, "return document.querySelector('#recent a')")
    assert run(
        browser, "return [...document.querySelectorAll('#recent a')].map((a) => a.textContent)"
    ) == ["lock", "queue <b>"]
    assert run(
        browser, "return [...document.querySelectorAll('#history option')].map((o) => o.value)"
    ) == ["lock", "queue <b>"]


def test_the_policy_blocks_nothing_of_the_page(browser: Any, address: str) -> None:
    browser.get_log("browser")
    for state in ("/", "/?q=lock+queue", "/?q=lock&compare=other"):
        browser.get(address + state)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_without_javascript(address: str) -> None:
    driver = webdriver.Chrome(options(scripts=False), webdriver.ChromeService(DRIVER))
    try:
        driver.implicitly_wait(30)
        driver.get(f"{address}/?q=lock+queue&hits=5")
        cards = driver.find_elements("css selector", ".main .card")
        assert len(cards) == 5
        assert all("meaning" in card.text for card in cards)
        driver.implicitly_wait(0)
        assert driver.find_elements("css selector", ".links") == []
        driver.implicitly_wait(30)
        driver.find_element("id", "q").clear()
        driver.find_element("id", "q").send_keys("pipe")
        driver.find_element("css selector", "button.primary").click()
        WebDriverWait(driver, 60).until(lambda page: "q=pipe" in page.current_url)
        driver.find_element("css selector", ".main .badge summary").click()
        assert "proved" in driver.find_element("css selector", ".main .pop").text
    finally:
        driver.quit()
