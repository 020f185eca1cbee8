"""The files of the web page, as they are served: types, caching, who gets them, what else there is
not."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from flinkray.rest.web_page import WebPage
from flinkray.testing.threaded_cluster import ThreadedCluster
from tests.rest.conftest import Counting
from tests.rest.http import Asker
from tests.rest.test_server import READS, served

FILES = {path.name: path.read_text() for path in (files("flinkray.rest") / "web").iterdir()}


@pytest.mark.parametrize(
    ("path", "content_type", "beginning"),
    [
        ("/", "text/html; charset=utf-8", b"<!DOCTYPE html>"),
        ("/web/style.css", "text/css; charset=utf-8", b":root"),
        ("/web/main.js", "text/javascript; charset=utf-8", b"//"),
        ("/web/icon.svg", "image/svg+xml; charset=utf-8", b"<svg"),
    ],
)
def test_file_of_the_web_page_is_sent_with_its_content_type(
    path: str, content_type: str, beginning: bytes, ask: Asker
) -> None:
    answer = ask("GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, content_type)
    assert answer.raw.startswith(beginning)
    head = ask("HEAD", path)
    assert (head.status, head.raw) == (200, b"")
    assert head.headers["etag"] == answer.headers["etag"]
    assert head.headers["content-length"] == str(len(answer.raw))


def test_file_with_a_matching_etag_is_answered_with_304(ask: Asker) -> None:
    answer = ask("GET", "/web/main.js")
    tag = answer.headers["etag"]
    assert answer.headers["cache-control"] == "no-cache"
    for known in (tag, f'"other", W/{tag}', "*"):
        again = ask("GET", "/web/main.js", headers={"If-None-Match": known})
        assert (again.status, again.raw, again.headers["etag"]) == (304, b"", tag)
    for unknown in ('"other"', "nonsense", ""):
        assert ask("GET", "/web/main.js", headers={"If-None-Match": unknown}).status == 200
    assert ask("GET", "/web/api.js").headers["etag"] != tag


@pytest.mark.parametrize(
    "path",
    [
        "/web",
        "/web/",
        "/web/index.html",
        "/web/none.js",
        "/web/../web_page.py",
        "/web/..%2fserver.py",
        "/web/%2e%2e/server.py",
        "/web/..%5cserver.py",
        "/web//etc/passwd",
        "/web/main.js%00",
        "/web/main.js/",
        "/v1/web/main.js",
        "/../../etc/passwd",
    ],
)
def test_path_outside_the_folder_of_the_web_page_is_answered_without_a_file(
    path: str, ask: Asker
) -> None:
    answer = ask("GET", path)
    assert answer.status in (400, 404)
    assert b"import" not in answer.raw
    assert b"root:" not in answer.raw


def test_post_and_put_to_the_web_page_are_answered_with_405(ask: Asker) -> None:
    assert ask("POST", "/", {}).status == 405
    assert ask("PUT", "/web/main.js", {}).status == 405


def test_content_security_policy_lets_the_page_load_only_its_own_files(ask: Asker) -> None:
    answer = ask("GET", "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/web/main.js", "/jobs/overview", "/nothing", "/jobs/x"])
def test_every_answer_forbids_mime_sniffing_framing_and_use_by_other_origins(
    path: str, ask: Asker
) -> None:
    headers = ask("GET", path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    if not path.startswith("/web/") and path != "/":
        assert headers["cache-control"] == "no-store"


def test_web_page_is_served_without_the_token_and_its_data_only_with_it(
    cluster: ThreadedCluster, counting: Counting
) -> None:
    with served(cluster, counting) as with_token:
        ask = Asker(f"http://{with_token.place}", None)
        for path in WebPage().files:
            assert ask("GET", path).status == 200
        for path in ("/jobs/overview", "/web/none.js", "/web/../jobs"):
            assert ask("GET", path).status == 401
    assert counting.questions == []


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Sec-Fetch-Site": "cross-site"}, 200),
        ("/", {"Host": "evil.example"}, 403),
        ("/web/main.js", {"Origin": "http://evil.example"}, 403),
        ("/jobs/x/yarn-cancel", {"Sec-Fetch-Site": "cross-site"}, 401),
        ("/jobs/x/yarn-cancel", {"Sec-Fetch-Site": "same-origin"}, 401),
        ("/jobs/overview", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/jobs/overview", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/jobs/overview", {"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_cross_site_requests_are_refused_except_links_to_the_page(
    path: str,
    headers: dict[str, str],
    status: int,
    cluster: ThreadedCluster,
    counting: Counting,
) -> None:
    """A picture whose address cancels a job sends no Origin header."""
    with served(cluster, counting, **READS) as with_token:
        ask = Asker(f"http://{with_token.place}", None)
        assert ask("GET", path, headers=headers).status == status


def test_every_file_that_the_web_page_refers_to_exists() -> None:
    paths = WebPage().files
    assert set(paths) == {"/"} | {f"/web/{name}" for name in FILES if name != "index.html"}
    for path in re.findall(r'(?:src|href)="(web/[^"]*)"', FILES["index.html"]):
        assert f"/{path}" in paths
    for name, text in FILES.items():
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in FILES, name


@pytest.mark.parametrize("name", sorted(FILES))
def test_web_page_files_name_no_foreign_host_and_make_no_html_from_text(name: str) -> None:
    text = FILES[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://", text)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text
    if name == "index.html":
        assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*src=)", text)
