# SPDX-License-Identifier: Apache-2.0
# What every target of this project is compiled with: warnings, sanitizers, visibility, contraction.

set(msda_warnings -Wall -Wextra -Wpedantic -Wshadow -Wvla)
set(msda_c_warnings -Wstrict-prototypes -Wmissing-prototypes)

function(msda_target name)
    set_target_properties(${name} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
        C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
        VISIBILITY_INLINES_HIDDEN ON)

    # The launch stubs that nvcc makes would otherwise need the C++ run-time library.
    set(without_runtime -fno-exceptions,-fno-threadsafe-statics)

    # Makes the machine code of all architectures a seventh of its size; the driver unpacks what it loads.
    set(compressed --compress-mode=size)

    # A fused multiply-add rounds once where the definition rounds twice, and then picks another pixel.
    target_compile_options(${name} PRIVATE
        $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>
        $<$<COMPILE_LANGUAGE:C,CXX>:${msda_warnings}>
        $<$<COMPILE_LANGUAGE:C>:${msda_c_warnings}>
        $<$<COMPILE_LANGUAGE:CUDA>:${compressed} -Xcompiler=-Wall,-Wextra,-Wshadow,-ffp-contract=off,${without_runtime}>)

    if(MSDA_WERROR)
        target_compile_options(${name} PRIVATE
            $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
            $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings -Xcompiler=-Werror>)
    endif()

    if(MSDA_SANITIZE)
        set(sanitize -fsanitize=${MSDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
        target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${sanitize}>)
        target_link_options(${name} PRIVATE -fsanitize=${MSDA_SANITIZE})
    endif()
endfunction()
