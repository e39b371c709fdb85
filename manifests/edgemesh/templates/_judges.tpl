{{/* Not empty where the controller judges who writes what, as a webhook: on Kubernetes 1.28 and 1.29, and after their upgrade while a
webhook is there and the last of the policies is not, or is younger than 10 s. API servers enforce policies about a second after they
are stored, so the upgrade that brings them leaves the webhook beside them, and a later one takes it away: at no moment nothing guards the
objects. */}}
{{- define "edgemesh.judges" -}}
{{- if not (hasKey .Values "judged") }}{{ $_ := set .Values "judged" (include "edgemesh.judged" .) }}{{ end -}}
{{- .Values.judged -}}
{{- end }}

{{/* As looked up once: an answer that changes between two templates would render half of each form. */}}
{{- define "edgemesh.judged" -}}
{{- if semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version -}}
yes
{{- else if lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" "edgemesh" -}}
{{- $last := lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicyBinding" "" "edgemesh-crds" -}}
{{- if not $last -}}
yes
{{- else if lt (sub (unixEpoch now) (toDate "2006-01-02T15:04:05Z07:00" $last.metadata.creationTimestamp | unixEpoch)) 10 -}}
yes
{{- end -}}
{{- end -}}
{{- end }}
