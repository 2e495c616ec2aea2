"""Location in the code of each numbered part of the source documents, and the test that covers it."""

_ACCEPTANCE = "specdec/rules/acceptance.py"
_VERIFY = "specdec/rules/verification.py::verify"
_GAMMA = "specdec/planning/gamma.py"
_TREES = "specdec/trees/verification.py"
_ENGINE = "specdec/engine/native.py::NativeEngine"
_SEQUENCE = "verifier_service/passes/sequence.py::Sequence"
_PASS = "verifier_service/backends/target_pass.py::verify_batch"
_FILTERS = "specdec/sampling/filters.py::distributions"
_DRAFTS = "specdec/rules/proposal.py::propose"
_CLOSED = "benchmarks/paper/closed.py"
_WORKED = "benchmarks/paper/worked.py"
_THEORY = "benchmarks/theory.py::divergence"

_CONFORMANCE = "tests/conformance"
_EXACT = f"{_CONFORMANCE}/test_exact_chain.py::test_the_joint_law_of_a_round_is_the_targets"
_PAPER = "tests/unit/benchmarks/test_paper.py"
_DIVERGENCE = f"{_PAPER}::test_the_divergence_of_the_paper_is_one_less_alpha"
_MEASURED = f"{_PAPER}::test_measured_tables_stand_beside_the_papers"
_PICTURES = f"{_PAPER}::test_the_pictures_of_the_page_are_there"
_EXPECTED = f"{_PAPER}::test_table_4_is_the_papers_within_a_tenth"
_ROUND = f"{_PAPER}::test_a_greedy_round_commits_up_to_the_first_difference"
_RULES = "tests/unit/specdec/rules"
_PLANNING = "tests/unit/specdec/planning"
_LENGTHS = f"{_PLANNING}/test_gamma.py::test_expected_tokens_is_the_geometric_sum"
_SOURCES = "tests/unit/specdec/sources/test_sources.py"
_DISTRIBUTION = "tests/unit/specdec/sampling/test_distribution.py"
_COMMANDS = "tests/unit/specdec/cli/commands"
_PASSES = "tests/unit/verifier_service/passes"
_BACKENDS = "tests/unit/verifier_service/backends"
_ROLLBACK = "tests/integration/engine/test_engine.py::test_a_rejected_position_is_never_read_again"

_LEVIATHAN = "Leviathan"
_STRATOS = "Stratos"
_NGRAM = "n-grams"
_NOTES = "notes"
_BLOG = "blog"

PLACES: tuple[tuple[str, str, str, str], ...] = (
    (_LEVIATHAN, "§2.2 standardized sampling", "specdec/sampling/distribution.py::probabilities",
     f"{_CONFORMANCE}/test_exact_chain.py::test_the_joint_law_is_the_targets_under_each_sampling_parameter"),
    (_LEVIATHAN, "Algorithm 1, the drafts", _DRAFTS, _EXACT),
    (_LEVIATHAN, "Algorithm 1, the verdict", _VERIFY, _EXACT),
    (_LEVIATHAN, "Figure 1, drafts in colour", "specdec/cli/commands/render.py",
     f"{_COMMANDS}/test_render.py::test_rejected_drafts_stand_before_their_correction"),
    (_LEVIATHAN, "Definition 3.1, acceptance rate β", f"{_ACCEPTANCE}::rejection", _DIVERGENCE),
    (_LEVIATHAN, "Equation (1)", f"{_GAMMA}::expected_tokens", _LENGTHS),
    (_LEVIATHAN, "Figure 2", f"{_CLOSED}::curves", _PICTURES),
    (_LEVIATHAN, "Definition 3.2, D_LK", _THEORY, _DIVERGENCE),
    (_LEVIATHAN, "Lemma 3.3", _THEORY, _DIVERGENCE),
    (_LEVIATHAN, "Corollary 3.4", _THEORY, _DIVERGENCE),
    (_LEVIATHAN, "Theorem 3.5", _THEORY, _DIVERGENCE),
    (_LEVIATHAN, "Corollary 3.6, α", "benchmarks/paper/measured.py::approximations",
     f"{_PAPER}::test_alpha_lenience_and_rejection_sampling_by_hand"),
    (_LEVIATHAN, "Corollary 3.6, as an estimate", f"{_ACCEPTANCE}::overlaps_on_host",
     f"{_RULES}/test_verification.py::test_overlaps_estimate_what_is_accepted_with_less_variance"),
    (_LEVIATHAN, "Definition 3.7, c", "specdec/planning/sizing.py::RoundCosts",
     f"{_PLANNING}/test_sizing.py::test_a_worked_example"),
    (_LEVIATHAN, "Theorem 3.8", f"{_GAMMA}::speedup", _EXPECTED),
    (_LEVIATHAN, "Corollary 3.9", f"{_GAMMA}::least_speedup",
     f"{_COMMANDS}/test_advise.py::test_it_says_the_papers_bounds"),
    (_LEVIATHAN, "Definition 3.10, ĉ", f"{_GAMMA}::operations_factor",
     "tests/unit/benchmarks/test_theory.py::test_a_drafters_own_operations_count"),
    (_LEVIATHAN, "Theorem 3.11", f"{_GAMMA}::operations_factor",
     "tests/unit/benchmarks/test_theory.py::test_the_operations_factor_of_a_free_drafter_is_that_of_table_1"),
    (_LEVIATHAN, "§3.5 choosing γ", f"{_GAMMA}::best_gamma",
     f"{_PLANNING}/test_gamma.py::test_best_gamma_is_never_worse_than_any_other"),
    (_LEVIATHAN, "§3.5 an oracle for γ", f"{_CLOSED}::text_figures",
     f"{_PAPER}::test_the_oracle_s_figure_is_computed_not_written"),
    (_LEVIATHAN, "Figure 3", f"{_CLOSED}::curves",
     f"{_PAPER}::test_the_best_gamma_grows_with_alpha_and_falls_with_c"),
    (_LEVIATHAN, "Table 1", f"{_CLOSED}::operations", f"{_PAPER}::test_table_1_is_the_papers_to_the_last_digit"),
    (_LEVIATHAN, "Figure 4", f"{_CLOSED}::curves", _PICTURES),
    (_LEVIATHAN, "Figure 5", "benchmarks/paper/measured.py::traces", _PICTURES),
    (_LEVIATHAN, "§3.6 n-gram models", "drafter_service/drafters/counts_drafter.py::CountsDrafter",
     "tests/unit/drafter_service/drafters/test_counted_drafters.py::test_counts_draft_under_the_requests_own_parameters"),
    (_LEVIATHAN, "§3.6 n-grams of the context", "specdec/sources/sampled.py::CountSampling",
     f"{_SOURCES}::TestSampled"),
    (_LEVIATHAN, "§3.6 copying from the context", "specdec/sources/prompt_lookup.py", f"{_SOURCES}::TestPromptLookup"),
    (_LEVIATHAN, "§3.6 random tokens", "drafter_service/drafters/uniform_drafter.py::UniformDrafter",
     f"{_CONFORMANCE}/test_exact_chain.py::test_random_tokens_are_exact_and_improve_every_model"),
    (_LEVIATHAN, "§4.1 encoder-decoder target", "specdec/engine/reference.py::ReferenceEngine",
     f"{_CONFORMANCE}/test_served_encoder_decoder.py::test_greedy_tokens_are_those_of_generate_in_every_mode"),
    (_LEVIATHAN, "Table 2", "benchmarks/paper/measured.py::walltime", _MEASURED),
    (_LEVIATHAN, "Table 3", "benchmarks/paper/page.py::alphas", _MEASURED),
    (_LEVIATHAN, "§6 a drafter that is drafted for", "drafter_service/drafters/source_reader.py::Guesser",
     "tests/unit/drafter_service/drafters/test_guesses.py::test_drafts_and_their_q_are_those_of_the_model_alone"),
    (_LEVIATHAN, "Appendix A.1, correctness", f"{_ACCEPTANCE}::residual", _EXACT),
    (_LEVIATHAN, "A.2, rejection sampling", "benchmarks/paper/measured.py::_judged",
     f"{_PAPER}::test_alpha_lenience_and_rejection_sampling_by_hand"),
    (_LEVIATHAN, "A.3, predictions beside runs", "benchmarks/sections/theory.py",
     "tests/unit/benchmarks/test_predictions.py::test_a_row_holds_the_formula_against_the_runs"),
    (_LEVIATHAN, "Table 4", f"{_CLOSED}::predictions", _EXPECTED),
    (_LEVIATHAN, "A.4, beam search", "specdec/beams/search.py::verified",
     f"{_CONFORMANCE}/test_served_beams.py::test_it_equals_generate_with_and_without_drafts"),
    (_LEVIATHAN, "A.5, lenience", f"{_ACCEPTANCE}::rejection",
     f"{_CONFORMANCE}/test_exact_lenience.py::test_the_joint_law_is_the_published_one"),
    (_LEVIATHAN, "A.5, temperature 0", "specdec/rules/lenience.py::lenient_greedy",
     f"{_RULES}/test_lenience.py::test_at_temperature_zero_a_draft_is_kept_when_it_is_nearly_the_best"),
    (_LEVIATHAN, "Table 5", "benchmarks/paper/page.py::leniences", _MEASURED),
    (_STRATOS, "§1, equation (1)", f"{_ACCEPTANCE}::residual", _EXACT),
    (_STRATOS, "§1, algorithm for one token", f"{_ACCEPTANCE}::rejection", _EXACT),
    (_STRATOS, "§1.1, algorithm", _VERIFY, _EXACT),
    (_STRATOS, "§1.1.1, expected length", f"{_GAMMA}::expected_tokens", _LENGTHS),
    (_STRATOS, "§1.1.1, footnote", f"{_WORKED}::footnote_length",
     f"{_PAPER}::test_the_footnote_s_sum_is_below_the_expected_length"),
    (_STRATOS, "§2, iterative sampling", "specdec/rules/multidraft.py::with_replacement",
     f"{_CONFORMANCE}/test_exact_siblings.py::test_the_committed_token_has_the_targets_law"),
    (_STRATOS, "§2.1, algorithm (SpecInfer)", f"{_TREES}::verify_tree",
     f"{_CONFORMANCE}/test_exact_tree.py::test_the_joint_law_of_a_tree_round_is_the_targets"),
    (_STRATOS, "§2.1, figure of a prefix tree", "specdec/trees/tree.py::Tree",
     "tests/integration/engine/test_tree.py::test_a_node_s_logits_are_those_of_its_lineage_beside_other_rows"),
    (_STRATOS, "§3, heads of the target", "specdec/engine/heads/eagle3.py::Eagle3Head",
     "tests/unit/specdec/engine/heads/test_headed.py::test_drafts_follow_from_the_targets_states"),
    (_STRATOS, "Appendix A, greedy chain", _VERIFY,
     f"{_RULES}/test_verification.py::test_greedy_is_the_argmax_whatever_was_drafted"),
    (_STRATOS, "Appendix A, greedy tree", f"{_TREES}::walk",
     "tests/unit/specdec/trees/test_verification.py::test_greedy_keeps_the_longest_agreeing_path"),
    (_NGRAM, "predictor and fallback of orders", "specdec/sources/ngram.py::Ngram", f"{_SOURCES}::TestNgram"),
    (_NGRAM, "predict() trace", f"{_WORKED}::ngram_trace",
     f"{_PAPER}::test_the_ngram_source_goes_on_after_a_phrase_it_has_seen"),
    (_NGRAM, "update and sliding window", "specdec/sources/context_counts.py::RecentCounts",
     f"{_SOURCES}::test_memory_is_bounded"),
    (_NGRAM, "no-draft fallback", _SEQUENCE,
     f"{_PASSES}/test_sequence.py::test_plain_decoding_is_the_same_loop_with_empty_drafts"),
    (_NGRAM, "batched verification", _PASS,
     f"{_BACKENDS}/test_target_pass.py::test_rows_of_every_mode_and_length_share_a_pass"),
    (_NGRAM, "acceptance logic", _VERIFY, _ROUND),
    (_NGRAM, "KV rollback", _ENGINE, _ROLLBACK),
    (_NGRAM, "buffer capacity guard", "verifier_service/backends/batch_plan.py::plan",
     f"{_BACKENDS}/test_batch_plan.py::test_drafts_that_are_too_many_together_are_cut_where_they_are_longest"),
    (_NGRAM, "speed-up analysis", f"{_WORKED}::accepted_drafts",
     f"{_PAPER}::test_the_expected_drafts_are_the_sum_over_how_many_are_kept"),
    (_NGRAM, "sampled decode by counts", "specdec/sources/sampled.py::CountSampling",
     f"{_CONFORMANCE}/test_exact_chain.py::test_drafts_drawn_from_counts_are_exact_by_these_counts"),
    (_NOTES, "§2 max_fn", f"{_ACCEPTANCE}::residual",
     f"{_RULES}/test_acceptance.py::test_the_residual_of_equal_distributions_is_p"),
    (_NOTES, "§3.2 first pass of the target", _PASS,
     f"{_BACKENDS}/test_target_pass.py::test_the_last_piece_of_a_prompt_goes_with_the_first_drafts"),
    (_NOTES, "§3.3.1 corrected_gamma", _SEQUENCE,
     f"{_PASSES}/test_sequence.py::test_gamma_leaves_room_for_the_token_the_target_adds"),
    (_NOTES, "§3.3.2 drafts", _DRAFTS, _EXACT),
    (_NOTES, "§3.3.3 parallel verification", _PASS,
     f"{_BACKENDS}/test_target_pass.py::test_rows_of_every_mode_and_length_share_a_pass"),
    (_NOTES, "§3.3.4 rejection sampling", f"{_ACCEPTANCE}::rejection", _EXACT),
    (_NOTES, "§3.3.5 sample adjustment", f"{_ACCEPTANCE}::residual",
     f"{_PAPER}::test_skipping_the_residual_is_off_by_what_the_page_says"),
    (_NOTES, "§3.3.6 end tokens in a round", "verifier_service/passes/conclude.py::cut",
     f"{_PASSES}/test_sequence.py::test_an_end_id_inside_a_draft_cuts_the_round_and_its_counts"),
    (_NOTES, "§4.2 greedy processor", _FILTERS,
     f"{_DISTRIBUTION}::test_temperature_zero_is_one_hot_on_the_lowest_of_the_best_ids"),
    (_NOTES, "§4.3 top-k, §4.4 top-p processors", _FILTERS, f"{_DISTRIBUTION}::test_it_agrees_with_transformers"),
    (_NOTES, "§5 prune_cache", _ENGINE, _ROLLBACK),
    (_NOTES, "§6 debug output", "specdec/cli/commands/run.py::show_report",
     f"{_COMMANDS}/test_run.py::test_a_round_is_explained_with_its_numbers_its_reason_and_its_times"),
    (_NOTES, "§7 EGAG, H_norm", "specdec/planning/certainty.py::certainties",
     f"{_PLANNING}/test_certainty.py::test_entropy_is_a_share_of_the_most_there_can_be_among_the_allowed_ids"),
    (_NOTES, "§7 EGAG, γ and its smoothing", "drafter_service/sessions/draft_session.py::ChainLength",
     "tests/unit/drafter_service/sessions/test_chain_length.py::test_the_average_goes_on_from_chain_to_chain"),
    (_NOTES, "§7 EGAG, H_norm and γ of each step", "specdec/cli/commands/run.py::table",
     f"{_COMMANDS}/test_run.py::test_a_round_drafted_by_entropy_is_explained_with_each_step"),
    (_BLOG, "the algorithm and its n", _VERIFY, _EXACT),
)  # fmt: skip
"""Document, part, location in the code, and test. A location is a path, or a path and a name in it."""


def render() -> str:
    """Return the table."""
    rows = [("document", "part", "code", "test"), ("---",) * 4]
    rows += [(document, part, f"`{place}`", f"`{test}`") for document, part, place, test in PLACES]
    return "\n".join(" | ".join(row) for row in rows)
