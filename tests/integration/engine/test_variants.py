"""The table of docs/engines.md states the result of loading each variant of a decoder."""

import pytest

from tests.integration.engine.variants import VARIANTS, Variant, row, rows_of_page

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.what)
def test_a_variant_is_served_or_refused_as_the_page_says(variant: Variant) -> None:
    assert row(variant) in rows_of_page()


def test_the_page_has_a_row_for_each_variant_and_no_other() -> None:
    assert len(rows_of_page()) == len(VARIANTS)
