"""Conan 2 recipe of the sources that it lies in: conan create packaging/conan"""
import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Attn(ConanFile):
    name = "attn"
    license = "Apache-2.0"
    description = "Exact attention for C++"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "cuda": [True, False]}
    default_options = {"shared": False, "fPIC": True, "cuda": True}
    implements = ["auto_shared_fpic"]

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        header = load(self, os.path.join(self._root, "include", "attn", "version.hpp"))
        self.version = re.search(r'VERSION_STRING "([0-9.]+)"', header).group(1)

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "packaging/debian.cmake", "src/*",
                        "third_party/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        for part in ("TOOLS", "TESTS", "EXAMPLES"):
            toolchain.cache_variables["ATTN_BUILD_" + part] = False
        toolchain.cache_variables["ATTN_CUDA"] = bool(self.options.cuda)
        toolchain.cache_variables["ATTN_FMT_COMPILED_IN"] = True  # no package is needed
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_info(self):
        # The package's own CMake files say what a program needs.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "attn")]
        self.cpp_info.libs = ["attn"]
        if not self.options.shared:
            self.cpp_info.defines = ["ATTN_STATIC"]
            self.cpp_info.system_libs = ["dl", "m", "pthread"]
