"""The documentation site shows every page and every public name, and nothing of it comes from the network."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("tstar_envs", "tstar_train", "retriever")
GENERATED = {"start.md", "changelog.md", "contributing.md", "security.md", "conduct.md", "data.md"}


class Loader(yaml.SafeLoader):
    """Reads !ENV as nothing."""


Loader.add_constructor("!ENV", lambda loader, node: None)


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def test_the_navigation_lists_every_page_once() -> None:
    listed = sorted(pages(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"]))
    assert listed == sorted({file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")} | GENERATED)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference_and_has_a_docstring(package: str) -> None:
    shown = set(
        re.findall(r"^::: (\S+)", "".join(f.read_text() for f in (DOCS / "reference").glob("*.md")), re.M)
    )
    module = import_module(package)
    lacking = []
    for name in module.__all__:
        value = getattr(module, name)
        if f"{package}.{name}" not in shown:
            lacking.append(f"{name}: not in docs/reference")
        if not value.__doc__:
            lacking.append(f"{name}: no docstring")
        for member, attribute in vars(value).items() if inspect.isclass(value) else ():
            public = not member.startswith("_") and (callable(attribute) or isinstance(attribute, property))
            if public and not inspect.getdoc(getattr(value, member)):
                lacking.append(f"{name}.{member}: no docstring")
    assert not lacking


def test_every_function_of_advantages_and_losses_is_in_the_reference() -> None:
    shown = (DOCS / "reference/credit.md").read_text(encoding="utf-8")
    for name in ("tstar_train.advantages", "tstar_train.losses"):
        module = import_module(name)
        own = [
            f"{name}.{member}"
            for member, value in vars(module).items()
            if not member.startswith("_") and getattr(value, "__module__", "") == name and callable(value)
        ]
        assert own and [member for member in own if f"::: {member}\n" not in shown] == []


def test_links_between_pages_and_files_lead_somewhere() -> None:
    texts = [
        *DOCS.rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    ]
    dead = [
        f"{file.relative_to(ROOT)}: {target}"
        for file in texts
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", target) and not (file.parent / target).exists()
    ]
    assert not dead


def anchors(page: Path, gap: str) -> set[str]:
    """The anchors of a page; `gap` is what becomes one hyphen: any space on GitHub, a run of spaces and hyphens on the site."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = set(re.findall(r"""<\w+ [^>]*id=["']([^"']+)""", text)) | set(
        re.findall(r"^::: (\S+)", text, re.M)
    )
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.M):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
        named.add(re.sub(gap, "-", words))
    return named


@pytest.mark.parametrize("gap", [r"\s", r"[-\s]+"], ids=["GitHub", "MkDocs"])
def test_links_to_a_heading_lead_to_one_on_github_and_on_the_site(gap: str) -> None:
    links = [
        (file, (file.parent / target).resolve() if target else file, anchor)
        for file in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", file.read_text(encoding="utf-8"))
        if not re.match(r"[a-z]+:", target)
    ]
    dead = [
        f"{file.relative_to(ROOT)}: {page.name}#{anchor}"
        for file, page, anchor in links
        if page.suffix == ".md" and anchor not in anchors(page, gap)
    ]
    assert links and not dead


def clone(target: Path) -> Path:
    """The files of this commit and what was changed since, without what is built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        ["scripts/docs.sh"], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
def test_the_site_is_built_in_a_fresh_clone_and_needs_no_network_and_faults_fail_it(tmp_path: Path) -> None:
    folder = clone(tmp_path)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    html = list((folder / "site").rglob("*.html"))
    assert len(html) > 40
    fetched = r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^"'>\s]*"""
    for file in html:
        if file.name != "benchmark.html" or file.parent.name != "results":
            assert not re.findall(fetched, file.read_text(encoding="utf-8")), file
    for sheet in (folder / "site").rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet
    reference = (folder / "site/reference/environments.html").read_text(encoding="utf-8")
    assert 'id="tstar_envs.TextEnv.snapshot"' in reference

    page, source = folder / "docs/faq.md", folder / "retriever/corpus.py"
    for path, fault, named in (
        (page, lambda text: text + "\n[gone](gone.md)\n", "gone.md"),
        (page, lambda text: text + "\n[gone](llm.md#no-such-heading)\n", "no-such-heading"),
        (folder / "docs/unlisted.md", lambda text: "# Unlisted\n", "unlisted.md"),
        (
            source,
            lambda text: re.sub(r'(class Document\b.*?:\n) +""".*?"""\n', r"\1", text, flags=re.S),
            "Document",
        ),
    ):
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(fault(before), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != before
        done = build(folder)
        assert done.returncode != 0 and named in done.stdout + done.stderr, named
        path.write_text(before, encoding="utf-8") if before else path.unlink()
    assert build(folder).returncode == 0
