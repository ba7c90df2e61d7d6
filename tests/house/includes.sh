#!/bin/sh
# includes.sh ROOT: a header includes only from its own room and those above it in the list, only
# `"mend/room/header.hpp"`, no umbrella, and from outside std only what its room exists for.
. "$(dirname "$0")/files.sh"

headers=$(files 'include/*')
[ -n "$headers" ] || verdict "no headers under $root/include" ""
found=$(awk '
  BEGIN {
    count = split("core trace kernel optim compress store comm checkpoint pipeline log session",
                  rooms, " ")
    for (i = 1; i <= count; ++i) level[rooms[i]] = i
  }
  function room_of(path) { return split(path, part, "/") > 2 ? part[2] : "" }
  function report(text) { print FILENAME ":" FNR ": " text }
  FNR == 1 {
    header = substr(FILENAME, length("include/") + 1)
    room = room_of(header)
    umbrella = header ~ /^mend\/mend(_cuda)?\.[a-z]+$/
    if (room != "" && !(room in level)) report("no room is named " room)
  }
  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    quoted = $0 ~ /include[ \t]*"/
    name = $0
    sub(/^[^<"]*[<"]/, "", name)
    sub(/[>"].*$/, "", name)
    if (name ~ /^mend\//) {
      other = room_of(name)
      if (!quoted) report("write #include \"" name "\"")
      if (header !~ /cuh$/ && name ~ /cuh$/) report("a .hpp includes the device side: " name)
      if (umbrella) next
      if (name ~ /^mend\/mend(_cuda)?\.[a-z]+$/) report("a header includes an umbrella: " name)
      else if (other != "" && !(other in level)) report("no room is named " other)
      else if (other != "" && (room == "" || level[other] > level[room]))
        report((room == "" ? header : room) " must not include from " other ": " name)
    } else {
      if (quoted) report("write the whole path, \"mend/...\", or <" name ">")
      if (header !~ /cuh$/ && name ~ /^(cuda|cub\/|thrust\/|nccl|cooperative_groups|nv\/|mma)/)
        report("CUDA named in a .hpp: " name)
      if (name ~ /^(fmt|nlohmann|CLI|doctest|benchmark)\// || name == "iostream")
        report("not in a library header: " name)
    }
  }' $headers)
verdict "$found" "$(echo "$headers" | grep -c '') headers include only upwards"
