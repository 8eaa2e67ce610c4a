# The README's two commands, and shortcuts for development. The build itself is CMake's (CMakePresets.json).
JOBS ?= $(shell nproc)

.PHONY: demo test build deps asan format lint

demo: deps
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target heirloom
	build/release/heirloom run demo-vl --image examples/shapes.png -p "Describe the picture."

test: build
	ctest --preset release -j $(JOBS)

build: deps
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

deps:
	scripts/install_deps.sh

asan:
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -j $(JOBS)

format:
	git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format -i

lint:
	clang-tidy -p build/release $$(git ls-files 'src/*.cc')
