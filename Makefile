# nibble: the common jobs. CMake does the building; this file names the jobs and installs what is missing.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
# clang makes the faster kernels here; CC=gcc works too.
ifeq ($(origin CC),default)
CC := clang
endif
CMAKE = CC=$(CC) cmake -G Ninja

.PHONY: all packages demo test test-clients bench install format lint asan tsan fuzz clean
all: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS)

$(BUILD)/build.ninja: | packages
	$(CMAKE) -B $(BUILD) -DCMAKE_BUILD_TYPE=RelWithDebInfo

packages: ## Install the Debian packages that are missing
	@scripts/install-packages

demo: all ## Build, then answer a prompt with the small model that comes with the source
	$(BUILD)/nibble run models/tiny-gpt-oss --reasoning low --temperature 0 --prompt "Anna has 38 apples and buys 27 more. How many apples does she have?"

test: all ## Build and run every test
	ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

test-clients: all ## What nibble writes, read by other people's programs: numpy, safetensors, Chromium
	scripts/install-packages chromium
	python3 tests/server/make_venv.py $(BUILD)/venv-clients tests/clients/requirements.txt
	$(BUILD)/venv-clients/bin/python -B tests/clients/convert_oracle.py $(BUILD)/nibble
	NIBBLE=$(BUILD)/nibble SCRIPTED=$(BUILD)/tests/scripted_server NIB_SCRATCH=$(BUILD)/scratch \
		$(BUILD)/venv-clients/bin/python -B tests/clients/chat_page.py

bench: all ## Measure: read bandwidth, MoE layer, decode
	bench/run $(BUILD)/nibble

install: all ## Command, library and headers below PREFIX (and DESTDIR)
	cmake --install $(BUILD) --prefix $(PREFIX)

asan: | packages ## All tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CMAKE) -B build-asan -DNIB_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNIB_VENV=$(abspath $(BUILD))/venv
	ninja -C build-asan -j $(JOBS)
	ctest --test-dir build-asan --output-on-failure -j $(JOBS)

# libomp tells ThreadSanitizer about its barriers through the archer tool, which comes with LLVM's OpenMP.
tsan: | packages ## The threaded code's tests under ThreadSanitizer
	CC=clang cmake -G Ninja -B build-tsan -DNIB_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo
	ninja -C build-tsan -j $(JOBS) test_moe test_moe_vectors test_engine test_batch test_cpu_attend test_cpu_linear test_cpu_ops \
		scripted_server nibble
	OMP_TOOL_LIBRARIES=$$(ls /usr/lib/llvm-*/lib/libarcher.so | tail -n 1) TSAN_OPTIONS=ignore_noninstrumented_modules=1 \
		ctest --test-dir build-tsan --output-on-failure -R '^(test_(moe|moe_vectors|engine|batch|cpu_attend|cpu_linear|cpu_ops)|server_(streams|service|endpoints|safety))$$'

fuzz: | packages ## Build the libFuzzer targets into build-fuzz/tests/
	CC=clang cmake -G Ninja -B build-fuzz -DNIB_FUZZ=ON -DNIB_SANITIZE=address,undefined
	ninja -C build-fuzz -j $(JOBS)

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

lint: all
	git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror
	run-clang-tidy -quiet -p $(BUILD) -j $(JOBS) 'src/.*\.c$$'

clean:
	rm -rf build build-*
