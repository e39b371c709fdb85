{{- define "edgemesh.labels" -}}
app.kubernetes.io/name: edgemesh
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "edgemesh.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* host:port of a probe: an address of all interfaces is probed on loopback. */}}
{{- define "edgemesh.probe" -}}
{{- $port := regexFind "[0-9]+$" .address -}}
{{- $host := trimSuffix (printf ":%s" $port) .address | trimPrefix "[" | trimSuffix "]" -}}
httpGet:
  host: {{ if has $host (list "" "0.0.0.0" "::" "mesh") }}127.0.0.1{{ else }}{{ $host | quote }}{{ end }}
  port: {{ $port }}
  path: {{ .path }}
{{- end }}

{{/* The API server's address before kube-proxy runs; overrides what kubelet injects. The
ConfigMap is mounted and not put into the environment, because kubelet would then restart no
container while the API is unreachable. */}}
{{- define "edgemesh.apiServer" -}}
{{- if .Values.apiServer.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .Values.apiServer.host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .Values.apiServer.port | quote }}}
{{- end }}
{{- end }}

{{/* The parts of an address with spaces between: four bytes, or eight groups. */}}
{{- define "edgemesh.parts" -}}
{{- $halves := splitList "::" . -}}
{{- $parts := regexSplit "[:.]" (index $halves 0) -1 -}}
{{- if gt (len $halves) 1 -}}
{{- $end := splitList ":" (index $halves 1) -}}
{{- range until (max 0 (sub 8 (add (len $parts) (len $end))) | int) }}{{ $parts = append $parts "0" }}{{ end -}}
{{- $parts = concat $parts $end -}}
{{- end -}}
{{ join " " $parts }}
{{- end }}

{{/* The resources of (list KEY FLOOR RESOURCES): with less memory than FLOOR MiB it is killed before it runs. */}}
{{- define "edgemesh.resources" -}}
{{- $key := index . 0 -}}
{{- $floor := index . 1 -}}
{{- $resources := index . 2 -}}
{{- $limit := dig "limits" "memory" "" $resources | toString -}}
{{- if $limit -}}
{{- $number := regexFind "^[+]?[0-9.]+([eE][+-]?[0-9]+)?" $limit -}}
{{- $units := dict "" 1 "n" 1e-9 "u" 1e-6 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976 -}}
{{- if lt (mulf $number (get $units (trimPrefix $number $limit))) (mulf $floor 1048576) -}}
{{- fail (printf "%s.limits.memory: %s is too little, it would be killed before it runs: %dMi or more, or no limit" $key $limit $floor) -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end }}

{{/* Of (list ROOT PART): the required node affinity of a part whose credentials every node would use: on the control plane, or
under a label that no kubelet can give itself. Where Helm sees Nodes and none may run it, nothing is installed, unless none shall run. */}}
{{- define "edgemesh.trusted" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $own := index $root.Values $part -}}
{{- $nodes := (lookup "v1" "Node" "" "").items -}}
{{- $fit := list -}}
{{- range $nodes -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $fits := or (hasKey $labels "node-role.kubernetes.io/control-plane") (hasKey $labels $own.label) -}}
{{- if (.spec | default dict).unschedulable -}}{{- $fits = false -}}{{- end -}}
{{- range $k, $v := $own.nodeSelector -}}
{{- $fits = and $fits (hasKey $labels $k) (eq (get $labels $k) $v) -}}
{{- end -}}
{{- if $fits -}}{{- $fit = append $fit .metadata.name -}}{{- end -}}
{{- end -}}
{{- if and $nodes (not $fit) $own.replicas -}}
{{- $also := "" -}}
{{- range $k, $v := $own.nodeSelector -}}{{- if ne $k "kubernetes.io/os" -}}{{- $also = printf "%s %s=%s" $also $k $v -}}{{- end -}}{{- end -}}
{{- fail (printf "no Node may run the %s: it runs on the control plane only, or where an administrator allows it, because whoever is root on its node has its credentials; cordoned Nodes do not count. Choose nodes that you trust with the cluster, no edges, and run: kubectl label node NODE %s=%s (values %s.label and %s.nodeSelector; docs/upgrade.md)" $part $own.label $also $part $part) -}}
{{- end -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]
      - matchExpressions: [{key: {{ $own.label }}, operator: Exists}]
{{- end }}

{{/* Not empty where the relay in the cluster reads the API: keys of the administrator's own do not sign the PodNetwork's bans. */}}
{{- define "edgemesh.relayReads" -}}
{{- if or .Values.agent.signers (not (include "edgemesh.signs" .)) }}true{{ end }}
{{- end }}

{{/* Not empty where a controller signs who is a member. */}}
{{- define "edgemesh.signs" -}}
{{- if and .Values.controller.enabled (ne (toString .Values.controller.sign) "false") }}true{{ end }}
{{- end }}
