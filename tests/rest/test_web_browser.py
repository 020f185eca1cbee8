"""The web page in a real Chromium, by mouse and keyboard, against a real endpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from flinkray.datastream import Configuration, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rest.server import RestServer
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import settings as checkpoints
from tests.rest.conftest import Counting, settings
from tests.rest.http import TOKEN, Asker

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = '<img src="x" onerror="document.title=1"><script>document.title=1</script>'
ACCESSIBLE = (Path(__file__).parent / "accessible.js").read_text()

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@contextmanager
def running(cluster: ThreadedCluster, folder: Path) -> Iterator[str]:
    """The id of an elastic stream that runs, and whose name is no good."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    values = {
        **checkpoints(folder, "1 h"),
        "jobmanager.scheduler": "adaptive",
    }
    env.configure(Configuration.from_dict(values))
    source = DataGeneratorSource(lambda n: n, 10**9, 500.0)
    numbers = env.set_parallelism(2).from_source(
        source, WatermarkStrategy.no_watermarks(), "numbers"
    )
    numbers.rebalance().map(lambda n: n).name("seen <b>").sink_to(DiscardingSink())
    job_id = env.execute_async(HOSTILE).get_job_id().hex()
    yield job_id
    cluster.client.job(job_id).cancel()
    cluster.client.job(job_id).wait(300)


@pytest.fixture(scope="module")
def job(cluster: ThreadedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(cluster, tmp_path_factory.mktemp("job")) as job_id:
        yield job_id


class Served:
    """An endpoint that can be ended and begun again at its address."""

    def __init__(self, cluster: ThreadedCluster, **values: str) -> None:
        self._cluster = cluster
        self._values = {"web_refresh__interval": "1 s", "rest_savepoint__dirs": "/", **values}
        self.start()
        self.url = self._server.url

    def start(self, port: int = 0) -> None:
        clock = self._cluster.mini.client.clock
        values = {**self._values, "rest_bind__port": str(port)}
        of = Counting(self._cluster)
        self._server = RestServer(of, settings(**values), clock.monotonic)
        self._cluster.session.run(self._server.start())

    def again(self) -> None:
        self.start(urlsplit(self.url).port or 0)

    def close(self) -> None:
        self._cluster.session.run(self._server.close())


@pytest.fixture
def endpoint(cluster: ThreadedCluster) -> Iterator[Served]:
    served = Served(cluster)
    yield served
    served.close()


@pytest.fixture
def page(browser: Browser, endpoint: Served) -> Iterator[Page]:
    """A new one, gone before the endpoint is, that must not complain: not of its policy, nor of a
    mistake in it."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(
        f"if (location.origin === '{endpoint.url}') "
        f"sessionStorage.setItem('flinkray.token', '{TOKEN}')"
    )
    page, complaints = context.new_page(), list[str]()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if "Security" in said.text else None,
    )
    page.set_default_timeout(20_000)
    yield page
    assert complaints == []
    context.close()


def open_job(page: Page, endpoint: Served, job: str, part: str = "") -> None:
    page.goto(f"{endpoint.url}/#/jobs/{job}{part}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img")


def until_runs(endpoint: Served, job: str, parallelism: int) -> None:
    ask = Asker(endpoint.url)

    def runs() -> bool:
        vertices = ask.get(f"/jobs/{job}")["vertices"]
        return bool(vertices) and all(it["tasks"]["RUNNING"] == parallelism for it in vertices)

    wait_until(runs, 300, f"{parallelism} subtasks of each vertex")


def test_names_given_by_a_user_are_shown_as_text_and_not_as_html(
    page: Page, endpoint: Served, job: str
) -> None:
    until_runs(endpoint, job, 2)
    page.goto(endpoint.url)
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(HOSTILE)
    graph = page.get_by_role("group", name="Graph of the job")
    expect(graph.get_by_role("link")).to_have_count(2)
    graph.get_by_role("link", name="seen <b>").press("Enter")
    expect(page.get_by_role("heading", name="seen <b>")).to_be_visible()
    expect(page.get_by_role("table", name="Subtasks of").locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("table", name="Vertices")).to_contain_text("/s")  # at the second look
    page.goto(f"{endpoint.url}/#/executors")
    expect(page.get_by_role("list").get_by_role("link", name=HOSTILE).first).to_be_visible()
    assert page.locator("img, script:not([src])").count() == 0
    assert page.title() == "TaskExecutors · flinkray"


def test_savepoint_can_be_requested_by_keyboard_and_a_refusal_is_shown(
    page: Page, endpoint: Served, job: str, folder: Path
) -> None:
    until_runs(endpoint, job, 2)
    open_job(page, endpoint, job)
    opener = page.get_by_role("button", name="Take a savepoint")
    opener.press("Enter")
    dialog = page.get_by_role("dialog", name="Take a savepoint")
    dialog.get_by_label("Directory").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text("Refused: ")
    expect(dialog.get_by_role("status")).to_contain_text("savepoint-dir")
    dialog.get_by_label("Directory").fill(str(folder))
    dialog.get_by_label("Directory").press("Enter")
    expect(dialog.get_by_role("status")).to_contain_text(f"The savepoint is at {folder}")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    open_job(page, endpoint, job, "/checkpoints")
    expect(page.get_by_role("table", name="History of")).to_contain_text("savepoint")


BEGUN = json.dumps({"request-id": "0" * 32})
OUTCOMES = {
    "Failed: no room": (
        200,
        {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": {"stack-trace": "no room"}}},
    ),
    "Not known: the endpoint was begun anew": (404, {"errors": ["Operation not found under key"]}),
}


@pytest.mark.parametrize("told", OUTCOMES)
def test_dialog_shows_why_a_savepoint_failed_after_it_had_begun(
    told: str, page: Page, endpoint: Served, job: str
) -> None:
    status, body = OUTCOMES[told]
    open_job(page, endpoint, job)
    page.route("**/savepoints", lambda it: it.fulfill(status=202, body=BEGUN))
    page.route("**/savepoints/*", lambda it: it.fulfill(status=status, body=json.dumps(body)))
    page.get_by_role("button", name="Take a savepoint").click()
    page.get_by_role("button", name="Take it").click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text(told)


def test_savepoint_requested_again_after_a_lost_answer_is_taken_once(
    page: Page, endpoint: Served, job: str, folder: Path
) -> None:
    open_job(page, endpoint, job)
    ids = list[str]()

    def lose_the_first(route: Route) -> None:
        ids.append(json.loads(route.request.post_data or "")["triggerId"])
        if len(ids) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    page.route("**/savepoints", lose_the_first)
    page.get_by_role("button", name="Take a savepoint").click()
    dialog = page.get_by_role("dialog", name="Take a savepoint")
    dialog.get_by_label("Directory").fill(str(folder))
    dialog.get_by_role("button", name="Take it").click()
    expect(dialog.get_by_role("status")).to_contain_text("No answer: ")
    dialog.get_by_role("button", name="Take it").click()
    expect(dialog.get_by_role("status")).to_contain_text(f"The savepoint is at {folder}")
    assert ids[0] == ids[1]
    assert len(list(folder.glob("savepoint-*"))) == 1


def test_rescale_dialog_offers_no_change_while_the_current_bounds_are_unavailable(
    page: Page, endpoint: Served, job: str
) -> None:
    open_job(page, endpoint, job)
    why = json.dumps({"errors": ["no Dispatcher leads"]})
    page.route("**/resource-requirements", lambda it: it.fulfill(status=503, body=why))
    page.get_by_role("button", name="Rescale").click()
    dialog = page.get_by_role("dialog", name="Rescale")
    expect(dialog).to_contain_text("cannot be changed now: no Dispatcher leads")
    expect(dialog.get_by_role("button")).to_have_text(["Do nothing"])


def test_web_page_shows_a_job_although_its_configuration_is_unknown(
    page: Page, endpoint: Served, job: str
) -> None:
    unknown = json.dumps({"errors": ["not known"]})
    page.route("**/jobs/*/config", lambda it: it.fulfill(status=404, body=unknown))
    open_job(page, endpoint, job, "/configuration")
    expect(page.get_by_text("How this job was run was not kept.")).to_be_visible()


def test_filter_of_the_job_list_shows_only_jobs_with_its_text_in_name_or_id(
    page: Page, endpoint: Served, job: str
) -> None:
    """Also when the list is fetched again, which keeps the typed filter."""
    page.goto(endpoint.url)
    link = page.get_by_role("link", name=HOSTILE)
    expect(link).to_be_visible()
    page.get_by_label("Name or id").fill("no such job")
    expect(link).to_have_count(0)
    page.get_by_role("link", name="Jobs", exact=True).click()
    expect(page).to_have_url(f"{endpoint.url}/#/jobs")
    expect(page.get_by_label("Name or id")).to_have_value("no such job")
    expect(page.get_by_text("No job is running.")).to_be_visible()
    page.get_by_label("Name or id").fill(job[:6])
    expect(link).to_be_visible()


def test_web_page_shows_cpu_amounts_as_decimals_and_an_unknown_amount_as_a_dash(
    page: Page, endpoint: Served
) -> None:
    page.goto(endpoint.url)
    amounts = "[0.5, 1, 0.0001, -1].map(it.amount)"
    found = page.evaluate(f"import('/web/format.js').then((it) => {amounts})")
    assert found == ["0.5", "1", "0.0001", "\N{EN DASH}"]


@pytest.mark.smoke
def test_job_can_be_rescaled_and_cancelled_in_the_browser(
    page: Page, endpoint: Served, job: str
) -> None:
    until_runs(endpoint, job, 2)
    open_job(page, endpoint, job)
    page.get_by_role("button", name="Rescale").click()
    dialog = page.get_by_role("dialog", name="Rescale")
    expect(dialog.get_by_label("At most")).to_have_count(2)  # all() does not wait for them
    for field in dialog.get_by_label("At most").all():
        field.fill("1")
    dialog.get_by_role("button", name="Rescale it").click()
    expect(dialog.get_by_role("status")).to_contain_text("The new bounds hold")
    until_runs(endpoint, job, 1)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("button", name="Do nothing").click()
    page.get_by_role("button", name="Cancel the job").click()
    page.get_by_role("button", name="Cancel it").click()
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("being cancelled")
    page.keyboard.press("Escape")
    expect(page.get_by_role("heading", level=1)).to_contain_text("CANCELED")
    expect(page.get_by_role("button", name="Cancel the job")).to_have_count(0)


def test_web_page_asks_for_the_token_and_keeps_it_for_the_browser_session(
    page: Page, cluster: ThreadedCluster
) -> None:
    served = Served(cluster, rest_token=TOKEN)
    try:
        page.goto(served.url)
        field = page.get_by_label("Token")
        expect(field).to_be_focused()
        field.fill("0123456789abcdeX")
        field.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text(["", "That is not the token."])
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.get_by_role("button", name="Forget token").click()
        expect(page.get_by_label("Token")).to_be_visible()
    finally:
        served.close()


def test_link_with_the_token_opens_the_page_and_leaves_no_token_in_url_or_requests(
    page: Page, cluster: ThreadedCluster
) -> None:
    served = Served(cluster)
    asked = list[str]()
    page.on("request", lambda request: asked.append(request.url))
    try:
        page.goto(f"{served.url}/#token={TOKEN}")
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        assert page.url == f"{served.url}/"
        assert page.evaluate("history.length") <= 2
        sent = [url.partition("#")[0] for url in asked]  # a browser does not send what follows
        assert [url for url in sent if TOKEN in url] == []
    finally:
        served.close()


def test_anonymous_reader_is_asked_for_the_token_before_a_change(
    page: Page, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    served = Served(cluster, rest_anonymous__access="read")
    try:
        with running(cluster, tmp_path) as job:
            page.goto(f"{served.url}/#/jobs/{job}")
            page.get_by_role("button", name="Cancel the job").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_role("button", name="Go on").click()
            page.get_by_role("button", name="Cancel the job").click()
            page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
            status = page.get_by_role("dialog").get_by_role("status")
            expect(status).to_contain_text("being cancelled")
    finally:
        served.close()


def test_partly_typed_token_is_kept_while_the_tab_is_hidden(
    page: Page, cluster: ThreadedCluster
) -> None:
    """The token is often copied from another tab."""
    served = Served(cluster, rest_token=TOKEN)
    try:
        page.goto(served.url)
        page.get_by_label("Token").fill(TOKEN[:8])
        asked = list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.evaluate("window.dispatchEvent(new Event('online'))")
        assert page.evaluate("fetch('config').then((it) => it.status)") == 401
        assert asked == [f"{served.url}/config"], "nothing is looked at without the token"
        expect(page.get_by_label("Token")).to_have_value(TOKEN[:8])
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Go on").click()
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.reload()
        expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    finally:
        served.close()


@pytest.mark.slow  # a connection that comes as the endpoint closes may be left to the collector
def test_web_page_shows_that_the_endpoint_is_unreachable_until_it_answers_again(
    page: Page, endpoint: Served
) -> None:
    page.goto(endpoint.url)
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    endpoint.close()
    expect(page.locator("#trouble")).to_contain_text("does not answer. What is shown is of ")
    endpoint.again()
    expect(page.locator("#trouble")).to_be_empty()


def test_updates_of_the_web_page_can_be_paused(page: Page, endpoint: Served) -> None:
    page.goto(endpoint.url)
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    page.get_by_role("button", name="Pause updates").click()
    expect(page.get_by_role("button", name="Pause updates")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_role("contentinfo")).to_contain_text("updates are paused")


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_every_view_of_the_page_is_accessible(
    width: int, scheme: Any, page: Page, endpoint: Served, job: str
) -> None:
    """Names of all controls, headings in order, contrast of 4.5, and nothing wider than the
    screen."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    parts = ["", "/timeline", "/checkpoints", "/exceptions", "/configuration"]
    for place in ["jobs", "executors", *(f"jobs/{job}{part}" for part in parts)]:
        page.goto(f"{endpoint.url}/#/{place}")
        page.locator(".view h1").wait_for()
        assert page.evaluate(ACCESSIBLE) == [], place


CHAIN = """Traceback (most recent call last):
  File "/jobs/delays.py", line 3, in parse
    airports[code]
    ~~~~~~~~^^^^^^
KeyError: 'EWR'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/jobs/delays.py", line 9, in flight
    raise ValueError(line) from error
ValueError: no such airport
"""
OF_SPARK = """Traceback (most recent call last):
  File "/lib/py4j/protocol.py", line 326, in get_return_value
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o196.parquet.
: org.apache.spark.SparkException: Job aborted: Traceback (most recent call last):
  File "/jobs/delays.py", line 7, in mean
    return total / 0
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:572)
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    ("trace", "cause"),
    [
        (
            CHAIN,
            ["KeyError: 'EWR'", "delays.py, line 3, in parse", ["ValueError: no such airport"]],
        ),
        (OF_SPARK, ["ZeroDivisionError: division by zero", "delays.py, line 7, in mean", []]),
        (
            "java.lang.A: b\n\tat a.B(C.java)\nCaused by: java.io.E: disk",
            ["java.io.E: disk", None, []],
        ),
        ("TaskExecutor lost\nmore", ["TaskExecutor lost", None, []]),
    ],
)
def test_web_page_shows_the_innermost_cause_of_a_traceback_first(
    trace: str, cause: list[Any], page: Page, endpoint: Served
) -> None:
    page.goto(endpoint.url)
    found = page.evaluate(
        f"import('/web/causes.js').then((it) => it.innermost({json.dumps(trace)}))"
    )
    assert [found["text"], found["place"], found["after"]] == cause


OF_A_HELD_SOURCE = """
import("/web/overview.js").then((it) => {
  const vertex = {
    id: "v", name: "numbers", status: "RUNNING", parallelism: 2, tasks: {RUNNING: 2}, duration: 1,
    metrics: {"read-records": 0, "write-records": 0, "read-bytes": 0, "write-bytes": 0},
  };
  const job = {vertices: [vertex], plan: {nodes: [{id: "v", inputs: []}]}, state: "RUNNING"};
  const metrics = new Map([["v", new Map([["isHeld", {sum: HELD}]])]]);
  const parts = it.overviewPart("jobs/1", []).render({metrics}, {job, progress: null});
  return parts.map((part) => part?.textContent ?? "");
})
"""


@pytest.mark.parametrize(("held", "is_told"), [(2, True), (0, False)])
def test_source_that_waits_for_spark_is_marked_in_graph_and_table(
    held: int, is_told: bool, page: Page, endpoint: Served
) -> None:
    page.goto(endpoint.url)
    graph, _, table = page.evaluate(OF_A_HELD_SOURCE.replace("HELD", str(held)))
    for text in (graph, table):
        assert ("2 of 2 held: Spark is behind" in text) is is_told, text


NAMES_OF_VERTICES = """import('/web/graph.js').then(({ drawing, SIZE }) => {
  const nodes = NAMES.map((name, i) => ({ id: `${i}`, inputs: [], name }));
  const graph = drawing(nodes, false, ({ id, name }) => (
    { href: `#${id}`, title: name, name, lines: [], shares: [], class: "" }));
  document.body.append(graph);
  const shown = [...graph.querySelectorAll(".node")].map((node) =>
    [...node.querySelectorAll(".name")].map((line) =>
      [line.textContent, line.getBBox().width <= SIZE.width - 24]));
  graph.remove();
  return shown;
})"""


def test_vertex_names_in_the_graph_fit_into_their_boxes(page: Page, endpoint: Served) -> None:
    page.goto(f"{endpoint.url}/")
    names = ["short", "Keyed Reduce -> slow mapper with a rather long name", "W" * 90, "i" * 40]
    names.append("\N{GRINNING FACE}" * 60)
    shown = page.evaluate(NAMES_OF_VERTICES.replace("NAMES", json.dumps(names)))
    short, long, wide, narrow, faces = [[text for text, _ in lines] for lines in shown]
    assert all(fits for lines in shown for _, fits in lines)
    assert (short, narrow) == (["short"], ["i" * 40])
    assert names[1].startswith(f"{long[0]} ")  # divided between words
    assert [len(lines) for lines in (long, wide, faces)] == [2, 2, 2]
    assert wide[1].endswith("W…")
    assert {*faces[0]} == {"\N{GRINNING FACE}"}


def test_vertices_of_a_drawn_graph_do_not_overlap(page: Page, endpoint: Served) -> None:
    """Also where an edge passes a layer, in both directions."""
    page.goto(endpoint.url)
    inputs = {"a": [], "b": [], "c": ["a", "b"], "d": ["c"], "e": ["d", "a"], "f": ["a"]}
    nodes = [
        {"id": name, "inputs": [{"id": one, "num": i} for i, one in enumerate(of)]}
        for name, of in inputs.items()
    ]
    for is_down in ("false", "true"):
        found = page.evaluate(
            f"import('/web/graph.js').then((it) => ((told) => ({{...told, size: it.SIZE,"
            f" places: [...told.places]}}))(it.layout({json.dumps(nodes)}, {is_down})))"
        )
        size, places = found["size"], dict(found["places"])
        assert len(found["edges"]) == 6
        for one, at in places.items():
            assert 0 <= at["x"] <= found["width"] - size["width"]
            assert 0 <= at["y"] <= found["height"] - size["height"]
            for other, near in places.items():
                apart = (
                    abs(at["x"] - near["x"]) >= size["width"]
                    or abs(at["y"] - near["y"]) >= size["height"]
                )
                assert one == other or apart
        along = "y" if is_down == "true" else "x"
        for edge in found["edges"]:
            assert places[edge["from"]][along] < places[edge["to"]][along]
