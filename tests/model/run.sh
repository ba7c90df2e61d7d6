#!/bin/sh
# run.sh [--all]: searches session.pml as CI does, two searches at a time, in a temporary folder that is removed at
# the end. Exit 0: every search ended as expected; 1: one did not; 77: spin or gcc is not installed.
# At most 2 x 3.5 GB of memory; under two minutes on two free cores. --all adds the large searches (about half an hour).
here=$(cd "$(dirname "$0")" && pwd)
for tool in spin gcc; do
  command -v $tool >/dev/null || { echo "skipped: $tool is not installed (apt-get install spin gcc)"; exit 77; }
done
TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 1' INT TERM HUP
jobs=$(nproc 2>/dev/null || echo 1)
test "$jobs" -lt 2 || jobs=2
begin=$(date +%s)

search() { xargs -L1 -P "$jobs" "$here/check.sh" || failed=1; }  # lines of EXPECTED NAME DEFS...
failed=0
printf '%-15s %11s %9s  %-34s %-34s\n' name states 'CPU s' expected seen

# Each of these must pass, except for the one mutant that needs a long search; the longest first.
search <<'END'
pass launcher_dies -DSUSP=0 -DLDIE=1 -DCOARSE -DZCUT
pass broken_link -DSUSP=0 -DSPUR=1 -DCOARSE -DZCUT
pass copies_woken -DCOPIES -DKILLS=1 -DSUSP=1 -DCOARSE
pass copies_restore -DCOPIES -DS=1 -DSUSP=0 -DSPUR=1 -DSPURFROM=2 -DCOARSE -DZCUT
survivor_needs_state_transfer M_RESTOREHALF -DCOPIES -DS=1 -DSUSP=0 -DSPUR=1 -DSPURFROM=2 -DCOARSE -DZCUT -DM_RESTOREHALF
pass copies_overlap -DCOPIES -DB=3 -DSUSP=0 -DOVERLAP -DCOARSE -DZCUT
pass woken_worker -DKILLS=1 -DSUSP=1 -DCOARSE
pass copies -DCOPIES -DSUSP=0 -DCOARSE -DZCUT
pass three_buckets -DB=3 -DSUSP=0 -DOVERLAP -DCOARSE -DZCUT
pass three_steps -DS=3 -DSUSP=0 -DOVERLAP -DCOARSE -DZCUT
pass one_spare -DSUSP=0 -DMAXR=1 -DCOARSE -DZCUT
END

# A protocol with one rule broken must fail, and for the reason that the rule exists for.
# Short searches: the compiler would take longer to optimise them than they run.
PAN_FLAGS=-O0
export PAN_FLAGS
search <<'END'
survivor_needs_state_transfer M_NOBARRIER -DSUSP=0 -DCOARSE -DZCUT -DM_NOBARRIER
survivor_needs_state_transfer M_NOPHASE -DSUSP=0 -DCOARSE -DZCUT -DM_NOPHASE
ver[((p*2)+i)]==s[p] M_CHUNK -DSUSP=0 -DCOARSE -DZCUT -DM_CHUNK
survivor_needs_state_transfer M_READY -DSUSP=0 -DCOARSE -DZCUT -DM_READY
invalid_end_state M_EARLYEXIT -DSUSP=0 -DCOARSE -DZCUT -DM_EARLYEXIT
buf[p]==s[p] M_NOBUFSNAP -DSUSP=0 -DCOARSE -DZCUT -DM_NOBUFSNAP
survivor_updated_bucket_not_undone M_NOUNDO -DSUSP=0 -DOVERLAP -DCOARSE -DZCUT -DM_NOUNDO
survivor_lacks_its_wards_copy M_COPYLATE -DCOPIES -DSUSP=0 -DCOARSE -DZCUT -DM_COPYLATE
survivor_lacks_its_wards_copy M_COPYEARLY -DCOPIES -DSUSP=0 -DCOARSE -DZCUT -DM_COPYEARLY
survivor_lacks_its_wards_copy M_COPYDROP -DCOPIES -DSUSP=0 -DCOARSE -DZCUT -DM_COPYDROP
restore_although_a_member_trained M_COPYAFTERGO -DCOPIES -DSUSP=0 -DCOARSE -DZCUT -DM_COPYAFTERGO
END

# Probes: these places are reached, so what the searches say about them is not empty.
search <<'END'
reached_missing_bucket_fetched V_BUCKET -DSUSP=0 -DCOARSE -DZCUT -DV_BUCKET
reached_restore V_RESTORE -DSUSP=0 -DKILLS=3 -DS=1 -DCOARSE -DZCUT -DV_RESTORE
reached_copy_fetched V_COPY -DCOPIES -DSUSP=0 -DCOARSE -DZCUT -DV_COPY
END

if [ "$1" = --all ]; then
  PAN_FLAGS=-DCOLLAPSE MEGABYTES=7000 jobs=1
  export MEGABYTES
  search <<'END'
pass unmerged -DB=3 -DSUSP=0 -DOVERLAP
pass three_deaths -DKILLS=3 -DS=1 -DSUSP=0 -DCOARSE -DZCUT
pass copies_unmerged -DCOPIES -DSUSP=0 -DOVERLAP
pass copies_deaths -DCOPIES -DKILLS=3 -DS=1 -DSUSP=0 -DCOARSE -DZCUT
pass copies_link -DCOPIES -DSUSP=0 -DSPUR=1 -DCOARSE -DZCUT
END
fi

test $failed = 0 && verdict="every search ended as expected" || verdict="SOME SEARCHES DID NOT END AS EXPECTED"
echo "$verdict, $(($(date +%s) - begin)) s"
exit $failed
