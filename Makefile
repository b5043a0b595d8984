# The tests of this project in one word; scripts/test.sh says what they need and runs all of them.
FAST = tests/contracts/test_module_lengths.py tests/contracts/test_imports.py tests/contracts/test_task_sets.py \
  tests/envs/sokoban/test_sokoban_rules.py tests/envs/blocksworld/test_blocksworld_text.py tests/envs/search_qa/test_search_qa_rules.py \
  tests/envs/webshop/test_webshop_parity.py tests/envs/alfworld/test_alfworld_env.py tests/bench/test_agents.py tests/bench/test_costs.py \
  tests/cli/test_compare.py tests/retriever/test_retriever_index.py tests/train/algorithms/test_advantages.py tests/train/algorithms/test_losses.py \
  tests/train/tree/test_tree_values.py tests/train/run/test_schedules.py

.PHONY: test test-fast
test:
	scripts/test.sh

# Something of every package, in under a minute on two cores.
test-fast:
	scripts/setup.sh all,dev
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv/bin/python -m pytest -n 2 --dist loadfile $(FAST)
