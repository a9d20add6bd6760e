# The end of what tests/run.sh prints: which tests failed or never ended, and how many there were.

# A test binary that fails lists its tests behind its last line "failures:".
/^failures:$/ { listed = 0; next }
/^    [^ ]/ { names[listed++] = substr($0, 5) }
/^test result:/ {
  if ($3 == "FAILED.") for (i = 0; i < listed; i++) print "FAILED: " names[i]
  listed = 0
  passed += $4
  failed += $6
}
# Python's unittest.
/^(FAIL|ERROR): / { print "FAILED: " $2 " " $3; failed++ }
/^Ran [0-9]+ test/ { passed += $2; python = 1 }
/^FAILED \(/ && python {
  gsub(/[^0-9 ]/, "")
  for (i = 1; i <= NF; i++) passed -= $i
}
# What was built or started in vain; Cargo names the targets at its end.
/^error: (doc)?test failed, to rerun/ { next }
/^error: / { print }
/^error: [0-9]+ targets? failed:$/ { getline; while (/^    /) { print; if ((getline) <= 0) break } }
# A thread alone writes how a test ended on the line of its slowness, or on one of its own.
/^test .* has been running for over/ { slow[$2]; last = $2; next }
/^test .* \.\.\. (ok|FAILED|ignored)/ { delete slow[$2] }
/^(ok|FAILED)$/ { delete slow[last] }
END {
  for (test in slow) print "NEVER ENDED: " test
  print passed " passed, " failed + 0 " failed"
}
