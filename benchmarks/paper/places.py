"""Location in the code of each numbered part of the source documents, and the test that covers it."""

from benchmarks.paper.closed import markdown

_ACCEPTANCE = "specdec/rules/acceptance.py"
_GAMMA = "specdec/planning/gamma.py"
_PAPER = "tests/unit/benchmarks/test_paper.py"
_EXACT = "tests/conformance/test_exact_chain.py::test_the_joint_law_of_a_round_is_the_targets"
_CLOSED = f"{_PAPER}::test_the_page_says_what_the_formulas_give"
_MEASURED = f"{_PAPER}::test_measured_tables_stand_beside_the_papers"
_DIVERGENCE = f"{_PAPER}::test_the_divergence_of_the_paper_is_one_less_alpha"
_GREEDY = "tests/unit/specdec/rules/test_verification.py::test_greedy_is_the_argmax_whatever_was_drafted"
_SOURCES = "tests/unit/specdec/sources/test_sources.py"
_COUNTED = "tests/unit/drafter_service/drafters/test_counted_drafters.py"
_VERIFY = "specdec/rules/verification.py::verify"
_TREES = "specdec/trees/verification.py"
_ENGINE = "specdec/engine/native.py::NativeEngine"
_SEQUENCE = "verifier_service/passes/sequence.py::Sequence"
_RULES = "tests/unit/specdec/rules"
_COMMANDS = "tests/unit/specdec/cli/commands"
_BENCHMARKS = "tests/unit/benchmarks"
_EXACTLY = "tests/conformance"
_PICTURES = f"{_PAPER}::test_the_pictures_of_the_page_are_there"
_ROLLBACK = "tests/integration/engine/test_engine.py::test_a_rejected_position_is_never_read_again"

_LEVIATHAN = "Leviathan et al."
_STRATOS = "Stratos"
_NGRAM = "n-gram chapter"
_NOTES = "implementation notes"
_BLOG = "blog"

PLACES: tuple[tuple[str, str, str, str], ...] = (
    (_LEVIATHAN, "Algorithm 1, the drafts", "specdec/rules/proposal.py::propose", _EXACT),
    (_LEVIATHAN, "Algorithm 1, the verdict", _VERIFY, _EXACT),
    (_LEVIATHAN, "§2.2 standardized sampling", "specdec/sampling/distribution.py::probabilities",
     f"{_EXACTLY}/test_exact_chain.py::test_the_joint_law_is_the_targets_under_each_sampling_parameter"),
    (_LEVIATHAN, "Definition 3.1, acceptance rate β", f"{_ACCEPTANCE}::rejection", _DIVERGENCE),
    (_LEVIATHAN, "Equation (1)", f"{_GAMMA}::expected_tokens",
     "tests/unit/specdec/planning/test_gamma.py::test_expected_tokens_is_the_geometric_sum"),
    (_LEVIATHAN, "Definition 3.2, D_LK", "benchmarks/theory.py::divergence", _DIVERGENCE),
    (_LEVIATHAN, "Lemma 3.3", "benchmarks/theory.py::divergence", _DIVERGENCE),
    (_LEVIATHAN, "Corollary 3.4", "benchmarks/theory.py::divergence", _DIVERGENCE),
    (_LEVIATHAN, "Theorem 3.5", "benchmarks/theory.py::divergence", _DIVERGENCE),
    (_LEVIATHAN, "Corollary 3.6, α", "benchmarks/paper/measured.py::approximations",
     f"{_PAPER}::test_alpha_lenience_and_rejection_sampling_by_hand"),
    (_LEVIATHAN, "Corollary 3.6, as an estimate", f"{_ACCEPTANCE}::overlaps_on_host",
     f"{_RULES}/test_verification.py::test_overlaps_estimate_what_is_accepted_with_less_variance"),
    (_LEVIATHAN, "Definition 3.7, c", "specdec/planning/sizing.py::RoundCosts",
     "tests/unit/specdec/planning/test_sizing.py"),
    (_LEVIATHAN, "Theorem 3.8", f"{_GAMMA}::speedup", _CLOSED),
    (_LEVIATHAN, "Corollary 3.9", f"{_GAMMA}::least_speedup",
     f"{_COMMANDS}/test_advise.py::test_it_says_the_papers_bounds"),
    (_LEVIATHAN, "Definition 3.10, ĉ", f"{_GAMMA}::operations_factor",
     f"{_BENCHMARKS}/test_theory.py::test_a_drafters_own_operations_count"),
    (_LEVIATHAN, "Theorem 3.11", f"{_GAMMA}::operations_factor",
     f"{_BENCHMARKS}/test_theory.py::test_the_operations_factor_of_a_free_drafter_is_that_of_table_1"),
    (_LEVIATHAN, "§3.5 choosing γ", f"{_GAMMA}::best_gamma",
     "tests/unit/specdec/planning/test_gamma.py::test_best_gamma_is_never_worse_than_any_other"),
    (_LEVIATHAN, "§4.1 encoder-decoder target", "specdec/engine/reference.py::ReferenceEngine",
     f"{_EXACTLY}/test_served_encoder_decoder.py::test_greedy_tokens_are_those_of_generate_in_every_mode"),
    (_LEVIATHAN, "§3.6 n-gram models", "drafter_service/drafters/counts_drafter.py::CountsDrafter",
     _COUNTED),
    (_LEVIATHAN, "§3.6 n-grams of the context", "specdec/sources/sampled.py::CountSampling",
     f"{_SOURCES}::TestSampled"),
    (_LEVIATHAN, "§3.6 copying from the context", "specdec/sources/prompt_lookup.py", _SOURCES),
    (_LEVIATHAN, "§3.6 random tokens", "drafter_service/drafters/uniform_drafter.py::UniformDrafter",
     f"{_EXACTLY}/test_exact_chain.py::test_random_tokens_are_exact_and_improve_every_model"),
    (_LEVIATHAN, "Table 1", "benchmarks/paper/closed.py::operations",
     f"{_PAPER}::test_table_1_is_the_papers_to_the_last_digit"),
    (_LEVIATHAN, "Table 2", "benchmarks/paper/measured.py::walltime", _MEASURED),
    (_LEVIATHAN, "Table 3", "benchmarks/paper/page.py::alphas", _MEASURED),
    (_LEVIATHAN, "Table 4", "benchmarks/paper/closed.py::predictions", _CLOSED),
    (_LEVIATHAN, "Table 5", "benchmarks/paper/page.py::leniences", _MEASURED),
    (_LEVIATHAN, "Figure 1, drafts in colour", "specdec/cli/commands/render.py", f"{_COMMANDS}/test_run.py"),
    (_LEVIATHAN, "Figure 2", "benchmarks/paper/closed.py::curves", _PICTURES),
    (_LEVIATHAN, "Figure 3", "benchmarks/paper/closed.py::curves",
     f"{_PAPER}::test_the_best_gamma_grows_with_alpha_and_falls_with_c"),
    (_LEVIATHAN, "Figure 4", "benchmarks/paper/closed.py::curves", _PICTURES),
    (_LEVIATHAN, "Figure 5", "benchmarks/paper/measured.py::traces", _PICTURES),
    (_LEVIATHAN, "Appendix A.1, correctness", f"{_ACCEPTANCE}::residual", _EXACT),
    (_LEVIATHAN, "A.2, rejection sampling", "benchmarks/paper/measured.py::_judged",
     f"{_PAPER}::test_alpha_lenience_and_rejection_sampling_by_hand"),
    (_LEVIATHAN, "A.3, predictions beside runs", "benchmarks/sections/theory.py", f"{_BENCHMARKS}/test_predictions.py"),
    (_LEVIATHAN, "A.4, beam search", "specdec/beams/search.py::verified",
     "tests/conformance/test_served_beams.py::test_it_equals_generate_with_and_without_drafts"),
    (_LEVIATHAN, "A.5, lenience", f"{_ACCEPTANCE}::rejection",
     f"{_EXACTLY}/test_exact_lenience.py::test_the_joint_law_is_the_published_one"),
    (_LEVIATHAN, "A.5, temperature 0", "specdec/rules/lenience.py::lenient_greedy",
     f"{_RULES}/test_lenience.py::test_at_temperature_zero_a_draft_is_kept_when_it_is_nearly_the_best"),
    (_STRATOS, "§1, equation (1)", f"{_ACCEPTANCE}::residual", _EXACT),
    (_STRATOS, "§1.1, algorithm", _VERIFY, _EXACT),
    (_STRATOS, "§1.1.1, length", f"{_GAMMA}::expected_tokens", _CLOSED),
    (_STRATOS, "§2, iterative sampling", "specdec/rules/multidraft.py::with_replacement",
     f"{_EXACTLY}/test_exact_siblings.py::test_the_committed_token_has_the_targets_law"),
    (_STRATOS, "§2.1, SpecInfer", f"{_TREES}::verify_tree",
     f"{_EXACTLY}/test_exact_tree.py::test_the_joint_law_of_a_tree_round_is_the_targets"),
    (_STRATOS, "§2.1, tree attention", "specdec/trees/tree.py::Tree", "tests/integration/engine/test_tree.py"),
    (_STRATOS, "§3, draft heads", "specdec/engine/draft_head.py", "tests/unit/specdec/engine/test_draft_head.py"),
    (_STRATOS, "Appendix A, greedy chain", _VERIFY, _GREEDY),
    (_STRATOS, "Appendix A, greedy tree", f"{_TREES}::walk", "tests/unit/specdec/trees/test_verification.py"),
    (_NGRAM, "predictor and fallback of orders", "specdec/sources/ngram.py::Ngram", _SOURCES),
    (_NGRAM, "sliding window", "specdec/sources/context_counts.py::RecentCounts",
     f"{_SOURCES}::test_memory_is_bounded"),
    (_NGRAM, "acceptance logic", _VERIFY,
     f"{_PAPER}::test_a_greedy_round_commits_up_to_the_first_difference"),
    (_NGRAM, "KV rollback", _ENGINE,
     _ROLLBACK),
    (_NGRAM, "no-draft fallback", _SEQUENCE,
     f"{_RULES}/test_verification.py::test_an_empty_draft_gets_one_plain_token"),
    (_NGRAM, "speed-up analysis", "benchmarks/paper/worked.py::accepted_drafts", _CLOSED),
    (_NOTES, "max_fn", f"{_ACCEPTANCE}::residual",
     f"{_RULES}/test_acceptance.py::test_the_residual_of_equal_distributions_is_p"),
    (_NOTES, "corrected_gamma", _SEQUENCE, _CLOSED),
    (_NOTES, "logits processors", "specdec/sampling/filters.py::distributions",
     "tests/unit/specdec/sampling/test_filters.py"),
    (_NOTES, "prune_cache", _ENGINE,
     _ROLLBACK),
    (_NOTES, "debug output", "specdec/cli/commands/run.py::show_report", f"{_COMMANDS}/test_run.py"),
    (_NOTES, "EGAG, H_norm", "specdec/planning/certainty.py::certainties",
     "tests/unit/specdec/planning/test_certainty.py"),
    (_NOTES, "EGAG, γ and its smoothing", "drafter_service/sessions/draft_session.py::ChainLength",
     "tests/unit/drafter_service/sessions/test_chain_length.py"),
    (_BLOG, "the algorithm and its n", _VERIFY, _EXACT),
)  # fmt: skip
"""Document, part, location in the code, and test. A location is a path, or a path and a name in it."""


def render() -> str:
    """Return the table."""
    rows = [
        [document, part, f"`{place}`" if place.endswith(".py") or "::" in place else place, f"`{test}`"]
        for document, part, place, test in PLACES
    ]
    return markdown(("document", "part", "code", "test"), rows)
