{{/* What the controller may do. */}}

{{/* In every namespace that it looks at. Usage: $ → YAML list */}}
{{- define "llm-ray-scaler.rules" -}}
# To see the wishes, and to say what became of them.
- apiGroups: [llm-ray.io]
  resources: [workergroupscales]
  verbs: [get, list, watch]
- apiGroups: [llm-ray.io]
  resources: [workergroupscales/status]
  verbs: [patch]
# To find the cluster of a RayService, and to set the counts of a group and name the pods that go.
- apiGroups: [ray.io]
  resources: [rayservices]
  verbs: [get, list, watch]
- apiGroups: [ray.io]
  resources: [rayclusters]
  verbs: [get, list, patch, watch]
# To count whole gangs, and to see which are idle.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# To say why an autoscaler has no metric.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{/* Only where it looks at all namespaces. Usage: $ → YAML list */}}
{{- define "llm-ray-scaler.clusterRules" -}}
# To notice kinds that are installed later, without a restart.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
{{- end -}}

{{/* In the release's own namespace: who leads. Usage: $ → YAML list */}}
{{- define "llm-ray-scaler.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "llm-ray-scaler.fullname" . | quote }}]
  verbs: [get, update]
{{- end -}}

{{/* The controller's account. Usage: $ → YAML list */}}
{{- define "llm-ray-scaler.subjects" -}}
- kind: ServiceAccount
  name: {{ include "llm-ray-scaler.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}
