# SPDX-License-Identifier: MIT
import boxcar

async_execution = boxcar.async_function
