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
