"""Compares the shop's search with Lucene itself: the same products in the same order, from the analyser of the original's index.

    pip download --no-deps pyserini==0.22.1 && unzip pyserini-0.22.1-py3-none-any.whl && pip install JPype1    # and a Java 17
    python tests/envs/webshop/webshop_lucene.py --jar pyserini/resources/jars/anserini-0.22.1-fatjar.jar --data mini

The original's searcher (Anserini's SimpleSearcher) puts equal scores in the order of the ids, Lucene alone in that of the documents.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

from tstar_envs.envs.webshop.catalogue import SEARCH_LIMIT, Catalogue, indexed_text
from tstar_envs.envs.webshop.search import analyze
from tstar_envs.envs.webshop.shop import Shop
from tstar_envs.envs.webshop.tasks import load_shop


def queries(shop: Shop, count: int) -> list[str]:
    """Instructions, obvious queries, titles, and a few random words."""
    catalogue, draw = shop.catalogue, random.Random(0)
    texts = [indexed_text(catalogue.product(number)) for number in range(len(catalogue))]
    words = sorted({word for text in texts for word in text.split()})
    asked = {text for task in shop.tasks.values() for text in (task.instruction, task.query)}
    asked |= {catalogue.product(number)["name"] for number in range(len(catalogue))}
    asked |= {" ".join(draw.sample(words, draw.randint(1, 6))) for _ in range(300)}
    return draw.sample(sorted(asked), min(count, len(asked)))


def index(catalogue: Catalogue, java: Any, analyzer: Any, similarity: Any) -> Any:
    """Lucene's searcher over the catalogue's products."""
    lucene = java("org.apache.lucene.store.ByteBuffersDirectory")()
    config = java("org.apache.lucene.index.IndexWriterConfig")(analyzer)
    config.setSimilarity(similarity)
    writer = java("org.apache.lucene.index.IndexWriter")(lucene, config)
    unstored = java("org.apache.lucene.document.Field$Store").NO
    for product in (catalogue.product(number) for number in range(len(catalogue))):
        document = java("org.apache.lucene.document.Document")()
        document.add(
            java("org.apache.lucene.document.TextField")("contents", indexed_text(product), unstored)
        )
        key = java("org.apache.lucene.util.BytesRef")(product["asin"])
        document.add(java("org.apache.lucene.document.BinaryDocValuesField")("id", key))
        writer.addDocument(document)
    writer.forceMerge(1)
    writer.commit()
    searcher = java("org.apache.lucene.search.IndexSearcher")(
        java("org.apache.lucene.index.DirectoryReader").open(lucene)
    )
    searcher.setSimilarity(similarity)
    return searcher


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--jar", required=True, help="Anserini with all that it needs (anserini-...-fatjar.jar)"
    )
    parser.add_argument("--data", default="mini")
    parser.add_argument("--searches", type=int, default=1200)
    arguments = parser.parse_args()
    import jpype  # not among the tests' packages

    jpype.startJVM("-Xmx1g", classpath=[arguments.jar])
    java, shop = jpype.JClass, load_shop(arguments.data)
    catalogue = shop.catalogue
    analyzer = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    similarity = java("org.apache.lucene.search.similarities.BM25Similarity")(
        jpype.JFloat(0.9), jpype.JFloat(0.4)
    )
    searcher = index(catalogue, java, analyzer, similarity)
    generator, field = (
        java("io.anserini.search.query.BagOfWordsQueryGenerator")(),
        java("org.apache.lucene.search.SortField"),
    )
    by_id = field("id", java("org.apache.lucene.search.SortField$Type").STRING_VAL)
    order = java("org.apache.lucene.search.Sort")(field.FIELD_SCORE, by_id)
    by_document = by_asin = 0
    asked = queries(shop, arguments.searches)
    for text in asked:
        query = generator.buildQuery("contents", analyzer, text.lower())
        ours = list(catalogue.search(text))
        by_document += ours == [int(hit.doc) for hit in searcher.search(query, SEARCH_LIMIT).scoreDocs]
        by_asin += ours == [
            int(hit.doc) for hit in searcher.search(query, SEARCH_LIMIT, order, True).scoreDocs
        ]
    texts = [indexed_text(catalogue.product(number)) for number in range(len(catalogue))]
    utilities = java("io.anserini.analysis.AnalyzerUtils")
    same = sum([str(token) for token in utilities.analyze(analyzer, text)] == analyze(text) for text in texts)
    print(f"equal terms: {same} of {len(texts)} products")
    print(
        f"equal {SEARCH_LIMIT} in equal order: {by_asin} of {len(asked)} searches with ties by id, {by_document} with ties by document"
    )


if __name__ == "__main__":
    main()
